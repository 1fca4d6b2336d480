"""Primary: which of a script's loaders has the batches that count as steps, and when another takes over."""

from __future__ import annotations

from flatout.doctor.child.loaders import SeenLoader

ABSENT_FOR = 10
"""Training batches of others, none of the primary's among them, after which another is the primary."""
MAX_ANEW = 3
"""Loaders with which counting begins anew. Who goes on changing them would never be stopped otherwise."""


class Primary:
    """A warm-up on one loader, then the training on another: the latter is what the user asks about.

    Loaders that are read in turns, labelled and unlabelled, keep the first: it is never absent for long.
    """

    def __init__(self) -> None:
        self.loader: SeenLoader | None = None
        self._num_elected = 0
        self._num_others = 0

    def is_elected(self, seen: SeenLoader, *, is_open: bool) -> bool:
        """A batch of `seen` is asked for: whether that makes it the primary. Closed: only if there is none."""
        if seen is self.loader:
            self._num_others = 0
            return False
        if not seen.is_train:
            return False
        self._num_others += 1
        if self.loader is not None and (not is_open or self._num_others < ABSENT_FOR):
            return False
        self.loader, self._num_others = seen, 0
        self._num_elected += 1
        return True

    @property
    def counts_anew(self) -> bool:
        """Whether the steps of those before do not count."""
        return self._num_elected <= MAX_ANEW
