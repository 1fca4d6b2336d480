"""What a prepare that came to nothing leaves behind is taken away again; what was there before stays."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from flatout.store.lock import GUARD
from flatout.store.log import LOG
from flatout.store.metadata import SHARD_FOLDER

_TRACES = frozenset({GUARD, LOG, SHARD_FOLDER})
"""What every prepare makes before it has anything to keep."""


class Traces:
    """How a store's place was before a prepare, to leave it so if that fails before it made anything."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = _names(folder)
        self._missing = [place for place in (folder, *folder.parents) if not place.exists()]

    def remove(self) -> None:
        """Take away what came since, if it is of no use to anybody: no shard, journal or quarantine."""
        new = _names(self._folder) - self._before
        if not new <= _TRACES or (SHARD_FOLDER in new and _names(self._folder / SHARD_FOLDER)):
            return
        with suppress(OSError):  # another prepare has come, or another program looks in
            if SHARD_FOLDER in new:
                (self._folder / SHARD_FOLDER).rmdir()
            for name in new - {SHARD_FOLDER}:
                (self._folder / name).unlink()
            for place in self._missing:
                place.rmdir()


def _names(folder: Path) -> frozenset[str]:
    try:
        return frozenset(path.name for path in folder.iterdir())
    except OSError:
        return frozenset()
