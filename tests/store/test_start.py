"""Where a prepare begins: whoever watches is told of the first rows before they are decoded."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.errors import TooManyBadError
from flatout.store import DataPreprocessor
from flatout.store.progress import Silent
from flatout.store.specify import NUM_PROBED


class Watched(Silent):
    """Notes what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def begin(self, what: str, total: int) -> None:
        self.told.append((what, total))

    def advance(self, rows: int) -> None:
        self.told.append(("advance", rows))


def test_the_first_look_is_told_before_the_shards(source: Any) -> None:
    watched = Watched()
    DataPreprocessor(source.config(num_workers=0)).run(progress=watched)
    assert watched.told[:2] == [("first look", NUM_PROBED), ("prepare", 12)]
    assert sum(rows for what, rows in watched.told if what == "advance") == 12
    again = Watched()
    DataPreprocessor(source.config(num_workers=0)).run(progress=again)
    assert [what for what, _ in again.told if what != "advance"] == ["prepare"]  # nothing to look at


def test_it_is_told_once_however_many_rows_fail(source: Any) -> None:
    for number in range(12):
        (source.folder / f"s{number:02d}.npy").write_bytes(b"broken")
    watched = Watched()
    with pytest.raises(TooManyBadError):
        DataPreprocessor(source.config(num_workers=0, max_bad_fraction=1.0)).run(progress=watched)
    assert watched.told == [("first look", NUM_PROBED)]
