"""Progress: what a long job tells whoever watches. Facts are reported here, words are printed at the edge."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told by prepare and verify as they go; called from one thread at a time."""

    def begin(self, what: str, total: int) -> None:
        """A stage with `total` rows starts; the one before, if any, is over, whatever it has told."""

    def advance(self, rows: int) -> None:
        """So many more rows are done (negative: done again after a worker died)."""

    def bad(self, rows: int) -> None:
        """So many more rows failed."""

    def say(self, text: str) -> None:
        """Something worth a line."""


class Silent:
    """Tells nobody."""

    def begin(self, what: str, total: int) -> None:
        return

    def advance(self, rows: int) -> None:
        return

    def bad(self, rows: int) -> None:
        return

    def say(self, text: str) -> None:
        return
