"""Looking at rows' files: their paths in, size, time and fingerprint out. Without Arrow: workers do it, too."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np
from blake3 import blake3

from flatout.errors import SampleError
from flatout.source.files import SourceFile, hash_file
from flatout.source.identity import hash_text, hash_texts
from flatout.source.pair import is_half, names_of
from flatout.source.paths import find_path
from flatout.types import Array, Limits

SETTLED_S = 2
"""A file changed so shortly before the look may change again with the same time stamp: its content counts."""

Cells = tuple[Any, ...]
"""What a row's path columns hold: texts, None, SourceFiles for members of a tar."""


def settled_ns() -> int:
    """The latest time that a file may have to be known by its time."""
    return time.time_ns() - SETTLED_S * 10**9


@dataclass(slots=True)
class Seen:
    """What stands behind one cell: a file, both halves of a pair, those of a folder, a member of a tar."""

    path: str
    size: int = 0
    mtime_ns: int = 0
    """Of the newest file."""
    stamps: str = ""
    """Name, place, size and time of each file."""
    contents: str | None = None
    """Name, place and hash of each file, where contents count."""


@dataclass(slots=True)
class Files:
    """What the files of one row add up to."""

    path: str = ""
    size: int = 0
    mtime_ns: int = 0
    stamps: str = ""
    contents: str | None = None
    """None: they do not count."""
    is_missing: bool = False

    @classmethod
    def of(cls, cells: Sequence[Seen | None], order: Sequence[int]) -> Files:
        """A row's cells, None where there is nothing to look at; `order` is that of their names."""
        seen = [found for at in order if (found := cells[at]) is not None]
        contents = [each.contents for each in seen]
        return cls(
            next((each.path for each in cells if each is not None and each.path), ""),
            sum([each.size for each in seen]),
            max([each.mtime_ns for each in seen], default=0),
            "".join([each.stamps for each in seen]),
            None if None in contents or not contents else "".join(map(str, contents)),
        )

    def fingerprint(self, digest: int) -> int:
        """64 bits of the row's values and files; 0 stands for a row that cannot be up to date."""
        text = self.stamps if self.contents is None else self.contents
        return 0 if self.is_missing else file_hash(digest, text)

    def stamp(self, digest: int) -> int:
        """The same by sizes and times alone."""
        return 0 if self.is_missing else file_hash(digest, self.stamps)


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
                found = file_hash(digest, f"{name},0,{size},{mtime_ns};")
                return path, size, mtime_ns, found, found
        row = self.at(cells)
        size = -1 if row.is_missing else row.size
        fingerprint = row.fingerprint(digest)
        return row.path, size, row.mtime_ns, fingerprint, row.stamp(digest) if self.by_content else fingerprint

    def at(self, cells: Cells) -> Files:
        """What the files of one row add up to; an unusable path is a file that is not there."""
        seen: list[Seen | None] = [None] * len(cells)
        is_missing = False
        for at, cell in enumerate(cells):
            if cell is not None:
                try:
                    seen[at] = self.see(cell)
                except (OSError, SampleError):
                    seen[at], is_missing = Seen(str(getattr(cell, "name", cell))), True
        found = Files.of(seen, self.order or range(len(cells)))
        found.is_missing = is_missing
        return found

    def see(self, cell: Any) -> Seen:
        """Find and look at one cell's files.

        Raises:
            OSError, SampleError: they are not there.
        """
        return look_behind(cell, *self.find(cell), self.by_content)

    def find(self, cell: Any) -> tuple[str, os.stat_result]:
        """The file, folder or tar behind a cell, and its state.

        Raises:
            OSError, SampleError: it is not there.
        """
        if isinstance(cell, SourceFile):
            return str(cell.place), cell.stat()
        return find_path(str(cell), self.base, self.allow_outside)


def look_behind(cell: Any, path: str, state: os.stat_result, by_content: bool) -> Seen:
    """All files behind a path that was found in this state."""
    is_member = isinstance(cell, SourceFile) and cell.size is not None
    offset = cell.offset if isinstance(cell, SourceFile) else 0
    seen = Seen(f"{path}:{cell.name}" if is_member else path, contents="" if by_content else None)
    for file, stat in _files(path, state):
        place = f"{os.path.basename(file)},{offset}"  # noqa: PTH119
        seen.size += cell.size if is_member else stat.st_size
        seen.mtime_ns = max(seen.mtime_ns, stat.st_mtime_ns)
        seen.stamps += f"{place},{stat.st_size},{stat.st_mtime_ns};"
        if seen.contents is not None:
            seen.contents += f"{place},{_content(cell, file)};"
    return seen


def is_as_found(path: str, size: int, mtime_ns: int) -> bool:
    """Whether a file still has this size and time."""
    try:
        state = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return False
    return state.st_size == size and state.st_mtime_ns == mtime_ns


def file_hash(digest: int, text: str) -> int:
    """64 bits of a row's values (their digest) and of what is known of its files; never 0."""
    return hash_text(f"{digest}|{text}") or 1


def file_hashes(texts: Iterable[str]) -> Array:
    """The same of many rows, each `digest|text`."""
    return np.maximum(hash_texts(texts), 1)


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
