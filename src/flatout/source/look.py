"""Looking at rows' files: their paths in, size, time and fingerprint out. Without Arrow: workers do it, too."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np
from blake3 import blake3

from flatout.errors import SampleError
from flatout.source.files import SourceFile, hash_file
from flatout.source.pair import is_half, names_of
from flatout.source.paths import find_path
from flatout.types import Array, Limits

Cells = tuple[Any, ...]
"""What a row's path columns hold: texts, None, SourceFiles for members of a tar."""


@dataclass(slots=True)
class Files:
    """What the files of one row add up to."""

    path: str = ""
    size: int = 0
    mtime_ns: int = 0
    text: str = ""
    """Name, place and state of each file: its content where that is asked for, else its size and time."""
    stamps: str = ""
    """The same with sizes and times in any case; kept only where `text` has contents."""
    is_missing: bool = False

    def fingerprint(self, digest: int) -> int:
        """64 bits of the row's values and files; 0 stands for a row that cannot be up to date."""
        return 0 if self.is_missing else _hash(digest, self.text)

    def stamp(self, digest: int) -> int:
        """The same by sizes and times alone."""
        return 0 if self.is_missing else _hash(digest, self.stamps)


@dataclass(frozen=True, slots=True)
class Looks:
    """What was found of a block of rows."""

    paths: list[str]
    sizes: Array
    """-1: a file is missing."""
    mtimes_ns: Array
    fingerprints: Array
    stamps: Array
    """Fingerprints by sizes and times, whatever the others are by: of every file, not of their sum."""


@dataclass(frozen=True, slots=True)
class Looker:
    """Looks at the files that cells name: about 7 us a row of one file, 2 of them in the system."""

    base: str
    allow_outside: bool
    by_content: bool = False
    """Hash the files instead of trusting their size and time."""
    order: tuple[int, ...] = ()
    """In which order cells count; empty: as they stand."""

    def __call__(self, block: tuple[Sequence[Cells], Sequence[int]]) -> Looks:
        """A block of rows: the cells and the digest of each."""
        rows = [self._look(cells, digest) for cells, digest in zip(*block, strict=True)]
        fingerprints = np.array([row[3] for row in rows], np.uint64)
        return Looks(
            [row[0] for row in rows],
            np.array([row[1] for row in rows], np.int64),
            np.array([row[2] for row in rows], np.int64),
            fingerprints,
            np.array([row[4] for row in rows], np.uint64) if self.by_content else fingerprints,
        )

    def _look(self, cells: Cells, digest: int) -> tuple[str, int, int, int, int]:
        """Path, size, time, fingerprint and stamp of one row, as `at` finds them: 6 us where it is one file."""
        if len(cells) == 1 and type(cells[0]) is str and not self.by_content:
            try:
                path, state = find_path(cells[0], self.base, self.allow_outside)
            except (OSError, SampleError):
                return cells[0], -1, 0, 0, 0
            if S_ISREG(state.st_mode) and not is_half(path):
                size, mtime_ns = state.st_size, state.st_mtime_ns
                name = os.path.basename(path)  # noqa: PTH119
                found = _hash(digest, f"{name},0,{size},{mtime_ns};")
                return path, size, mtime_ns, found, found
        row = self.at(cells)
        size = -1 if row.is_missing else row.size
        fingerprint = row.fingerprint(digest)
        return row.path, size, row.mtime_ns, fingerprint, row.stamp(digest) if self.by_content else fingerprint

    def at(self, cells: Cells) -> Files:
        """What the files of one row add up to; an unusable path is a file that is not there."""
        found, places = Files(), [""] * len(cells)
        for at in self.order or range(len(cells)):
            if (cell := cells[at]) is None:
                continue
            try:
                places[at] = self._add(found, cell)
            except (OSError, SampleError):
                places[at], found.is_missing = str(getattr(cell, "name", cell)), True
        found.path = next(filter(None, places), "")
        return found

    def _add(self, found: Files, cell: Any) -> str:
        """Count one cell's file, or every file of its folder; where it stands out."""
        if isinstance(cell, SourceFile):
            path, state, offset, size = str(cell.path), os.stat(cell.path), cell.offset, cell.size  # noqa: PTH116
        else:
            path, state = find_path(str(cell), self.base, self.allow_outside)
            offset, size = 0, None
        for file, stat in _files(path, state):
            num_bytes, mtime_ns = stat.st_size, stat.st_mtime_ns
            found.size += num_bytes if size is None else size
            found.mtime_ns = max(found.mtime_ns, mtime_ns)
            stamp = f"{num_bytes},{mtime_ns}"
            name = os.path.basename(file)  # noqa: PTH119
            if self.by_content:
                found.stamps += f"{name},{offset},{stamp};"
                stamp = _content(cell, file)
            found.text += f"{name},{offset},{stamp};"
        return path if size is None else f"{path}:{cell.name}"


def _hash(digest: int, text: str) -> int:
    return int.from_bytes(blake3(f"{digest}|{text}".encode()).digest(length=8), "little") or 1


def are_as_found(block: tuple[Sequence[str], Sequence[int], Sequence[int]]) -> list[bool]:
    """Paths, sizes and times in; whether each is surely the same file. Folders and tars never are."""
    return [_is_as_found(*row) for row in zip(*block, strict=True)]


def _is_as_found(path: str, size: int, mtime_ns: int) -> bool:
    try:
        state = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return False
    return state.st_size == size and state.st_mtime_ns == mtime_ns


def _files(path: str, state: os.stat_result) -> Iterable[tuple[str, os.stat_result]]:
    """All files that stand behind a path: itself, both halves of a pair, or those of a folder."""
    if not S_ISREG(state.st_mode):
        return _in_folder(path)
    return _in_pair(path) if is_half(path) else ((path, state),)


def _in_pair(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every file that the decoder could take for one half or the other."""
    folder, name = os.path.split(path)
    for other in sorted({name, *names_of(name, "hdr"), *names_of(name, "img")}):
        file = os.path.join(folder, other)
        if os.path.isfile(file):  # noqa: PTH113
            yield file, os.stat(file)  # noqa: PTH116


def _in_folder(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every file of a folder (a DICOM series), in order of name."""
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        if entry.is_file():
            yield entry.path, entry.stat()


def _content(cell: Any, path: str) -> str:
    """Hash of a file, or of a tar's member alone: else each of its rows would read the whole tar."""
    if isinstance(cell, SourceFile) and cell.size is not None:
        return blake3(cell.read_bytes(Limits(cell.size))).hexdigest()
    return hash_file(Path(path))
