"""Sights: what a row's files were like when its samples were made from them.

A maker notes each file that it finds, as it is before it is read; afterwards the files are looked at again. So
what is recorded of a row is of the very bytes that its samples came from, and nobody has to look at all files
before the first is decoded, and at all of them again when the last one is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from stat import S_ISREG
from typing import Any

import numpy as np

from flatout.errors import SampleError
from flatout.source.look import Cells, Files, Looker, Seen, file_hashes, is_as_found, look_behind, settled_ns
from flatout.source.pair import is_half
from flatout.types import Array, Row

Sight = tuple[str, int, int, int, bool]
"""Path, bytes, newest time and fingerprint of a row's files, and whether that is of their contents.

Fingerprint 0: they changed while they were read, and must be read again next time."""
NO_SIGHT: Sight = ("", -1, 0, 0, False)
"""Of a row that gave no sample."""


@dataclass(frozen=True, slots=True)
class Sights:
    """The sights of a task's rows, in order; of one that gave no sample nothing is known."""

    fingerprints: Array
    by_content: Array
    sizes: Array
    mtimes_ns: Array
    paths: list[str]

    @classmethod
    def of(cls, rows: Sequence[Sight]) -> Sights:
        paths, sizes, mtimes_ns, fingerprints, by_content = zip(*rows, strict=True) if rows else [()] * 5
        return cls(
            np.array(fingerprints, np.uint64),
            np.array(by_content, bool),
            np.array(sizes, np.int64),
            np.array(mtimes_ns, np.int64),
            list(paths),
        )

    @property
    def num_moved(self) -> int:
        """Rows whose files changed while they were read."""
        return int(np.count_nonzero((self.fingerprints == 0) & (self.sizes >= 0)))


class Found:
    """The files that the makers of some rows have found, by the cell that named each, as they were at first.

    Of a plain file only numbers are kept: a state of the system's has 20 objects, and to hold those of the
    rows of one request cost more than all looks, by the caches that they took from the decoder.
    """

    __slots__ = ("_by_content", "_seen", "_settled_ns", "_unchanged")

    def __init__(self, by_content: bool = False) -> None:
        self._by_content = by_content
        self._settled_ns = settled_ns()
        self._seen: dict[Any, tuple[str, int, int] | Seen] = {}
        self._unchanged: set[Any] = set()

    def note(self, cell: Any, path: str, state: os.stat_result) -> None:
        """Keep what was found, before it is read. A file that may change again under its time is hashed now."""
        mtime_ns = state.st_mtime_ns
        if cell in self._seen:  # two rows of one file: if it changed in between, neither is what it will be
            if self._seen[cell] != (path, state.st_size, mtime_ns) and isinstance(self._seen[cell], tuple):
                self._seen[cell] = Seen(path)
            return
        is_plain = S_ISREG(state.st_mode) and type(cell) is str and not is_half(path)
        if is_plain and mtime_ns <= self._settled_ns and not self._by_content:
            self._seen[cell] = path, state.st_size, mtime_ns
            return
        try:
            seen = look_behind(cell, path, state, self._by_content)
            if seen.mtime_ns > self._settled_ns and seen.contents is None:
                seen = look_behind(cell, path, state, by_content=True)
        except OSError as error:
            raise SampleError("find", f"{path}: {error.strerror or error}") from error
        self._seen[cell] = seen

    def confirm(self, cell: Any) -> None:
        """All of it was read, and then it had the size and time that it was found with."""
        self._unchanged.add(cell)

    def of(self, cell: Any) -> tuple[str, int, int] | Seen | None:
        """Path, size and time of a plain file that has settled, more of others; None: nobody has found it."""
        return self._seen.get(cell)

    def settled(self, cells: Sequence[Any]) -> list[tuple[str, int, int] | None]:
        """Path, size and time of each that is a plain file and still as it was found; None for all others."""
        seen, unchanged = self._seen, self._unchanged
        plain = [found if type(found := seen.get(cell)) is tuple else None for cell in cells]
        return [
            found if found is None or cell in unchanged or is_as_found(*found) else None
            for cell, found in zip(cells, plain, strict=True)
        ]

    def path_of(self, cell: Any) -> str:
        """Where it was found, else what it is called."""
        seen = self._seen.get(cell)
        if seen is None:
            return str(getattr(cell, "name", cell))
        return seen.path if isinstance(seen, Seen) else seen[0]

    def is_same(self, cell: Any, path: str, size: int, mtime_ns: int) -> bool:
        """Whether a plain file is now as it was when it was found, or was when it had been read."""
        return cell in self._unchanged or is_as_found(path, size, mtime_ns)


@dataclass(frozen=True, slots=True)
class Sighter:
    """Looks at rows' files again when their samples are made; travels to workers by pickle."""

    looker: Looker
    columns: tuple[str, ...]
    """Of the paths that a row's samples depend on."""
    cycle_columns: tuple[str, ...] = ()
    """Those of them that may hold times instead."""
    is_early: bool = False
    """Whether all files of a row are noted before it is made: code that is not ours reads them as it likes."""

    def found(self) -> Found:
        """What rows need that are to be sighted."""
        return Found(self.looker.by_content)

    def note(self, row: Row, found: Found) -> None:
        """Note what a row's cells name; what cannot be found is its maker's to tell."""
        for column in self.columns:
            if (cell := self._cell(row, column)) is not None:
                with suppress(OSError, SampleError):
                    found.note(cell, *self.looker.find(cell))

    def sights(self, rows: Sequence[Row], found: Found) -> list[Sight]:
        """What is to be recorded of rows that were made: 0.9 us for one of a plain file, one by one 2.4."""
        if len(self.columns) != 1:
            return [self._sight_of_any(row, found) for row in rows]
        (column,) = self.columns
        plain = found.settled([row.values.get(column) for row in rows])
        texts = [
            "" if seen is None else f"{row.digest}|{_name(seen[0])},0,{seen[1]},{seen[2]};"
            for row, seen in zip(rows, plain, strict=True)
        ]
        hashed = zip(rows, plain, file_hashes(texts).tolist(), strict=True)
        return [
            self._sight_of_any(row, found) if seen is None else (*seen, fingerprint, False)
            for row, seen, fingerprint in hashed
        ]

    def _sight_of_any(self, row: Row, found: Found) -> Sight:
        cells = tuple(self._cell(row, column) for column in self.columns)
        try:
            seen = [None if cell is None else self._see(found, cell) for cell in cells]
            files = Files.of(self._alike(cells, seen), self.looker.order or range(len(cells)))
        except (OSError, SampleError):  # gone, or not what it was
            return next((found.path_of(cell) for cell in cells if cell is not None), ""), 0, 0, 0, False
        by_content = self.looker.by_content or files.contents is not None
        return files.path, files.size, files.mtime_ns, files.fingerprint(row.digest), by_content

    def _cell(self, row: Row, column: str) -> Any:
        value = row.values.get(column)
        if column in self.cycle_columns:
            from flatout.source.cycles import is_path

            return value if is_path(value) else None
        return value

    def _see(self, found: Found, cell: Any) -> Seen:
        """A cell's files as they were before they were read, if they are the same now."""
        before = found.of(cell)
        if before is None and not self.is_early:  # a maker of ours notes all that it reads: nobody has read it
            found.note(cell, *self.looker.find(cell))
            before = found.of(cell)
        if isinstance(before, tuple) and found.is_same(cell, *before):
            path, size, mtime_ns = before
            return Seen(path, size, mtime_ns, f"{_name(path)},0,{size},{mtime_ns};")
        if (
            isinstance(before, Seen)
            and replace(self.looker, by_content=False).see(cell).stamps == before.stamps
        ):
            return before
        raise SampleError("find", f"{cell} changed while it was read")

    def _alike(self, cells: Cells, seen: Sequence[Seen | None]) -> Sequence[Seen | None]:
        """All by content if one of them is: a later scan has one rule for a row.

        The others are settled: with the size and time that they had when they were read they are the same.
        """
        if not any(each is not None and each.contents is not None for each in seen):
            return seen
        by_content = replace(self.looker, by_content=True)
        alike = [
            by_content.see(cell) if each is not None and each.contents is None else each
            for cell, each in zip(cells, seen, strict=True)
        ]
        plain = replace(self.looker, by_content=False)  # once more: it takes a while to hash a large file
        if any(each and plain.see(cell).stamps != each.stamps for cell, each in zip(cells, seen, strict=True)):
            raise SampleError("find", "a file changed after it was read")
        return alike


def _name(path: str) -> str:
    """The last part; of a plain text a fifth of what `basename` takes."""
    return path.rpartition("/")[2] if os.sep == "/" else os.path.basename(path)  # noqa: PTH119
