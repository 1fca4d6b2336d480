"""The state of every row's source files: what tells a later prepare that a sample is up to date."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np
from blake3 import blake3

from flatout.errors import SampleError
from flatout.source.files import SourceFile, hash_file
from flatout.source.manifest import Manifest
from flatout.source.paths import find_path
from flatout.types import Array, Limits

SETTLED_NS = 2_000_000_000
"""A file changed within 2 s of the scan may change again with the same time stamp: its content counts."""
SCAN_ROWS = 65536


@dataclass(frozen=True, slots=True)
class RowStates:
    """One entry a row. A row whose file is missing has size -1 and fingerprint 0, which never matches."""

    paths: list[str]
    sizes: Array
    mtimes_ns: Array
    fingerprints: Array
    """64 bits over the row's values and its files' states; equal means nothing to do."""
    by_content: Array
    """Whether file contents, not times, went into the fingerprint."""
    lasting: Array
    """The fingerprint to record for a row that is up to date: by time again once its file has settled."""
    lasting_by_content: Array

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(slots=True)
class _Files:
    """What the files of one row add up to."""

    path: str = ""
    size: int = 0
    mtime_ns: int = 0
    text: str = ""
    is_missing: bool = False


def scan_rows(
    manifest: Manifest,
    columns: Sequence[str],
    *,
    allow_outside: bool,
    checksum: bool,
    content_rows: Array | None,
) -> RowStates:
    """Look at every row's files. `content_rows` marks rows whose contents are hashed in any case.

    Args:
        columns: columns whose values decide the samples; paths among them are looked at as files.
    """
    digests = manifest.digests(columns)
    look = _Looker(manifest, columns, allow_outside)
    settled_ns = time.time_ns() - SETTLED_NS
    states = RowStates([], *(np.zeros(len(manifest), dtype) for dtype in ("i8", "i8", "u8", "?", "u8", "?")))
    for start in range(0, len(manifest), SCAN_ROWS):
        stop = min(start + SCAN_ROWS, len(manifest))
        rows = look.cells(np.arange(start, stop))
        found = [look.at(cells, by_content=checksum) for cells in rows]
        block = digests[start:stop].tolist()
        states.paths.extend([row.path for row in found])
        states.sizes[start:stop] = [-1 if row.is_missing else row.size for row in found]
        states.mtimes_ns[start:stop] = [row.mtime_ns for row in found]
        states.lasting[start:stop] = [_fingerprint(*pair) for pair in zip(block, found, strict=True)]
        states.fingerprints[start:stop] = states.lasting[start:stop]
        _hash_unsettled(states, start, rows, block, look, checksum, content_rows, settled_ns)
    return states


def rows_that_moved(
    manifest: Manifest, columns: Sequence[str], positions: Array, states: RowStates, *, allow_outside: bool
) -> Array:
    """Which of these rows have files that are not as the scan found them: they changed while being read."""
    look = _Looker(manifest, columns, allow_outside)
    if look.num_columns == 1:
        positions = positions[[not _is_as_found(states, at) for at in positions.tolist()]]
    moved = []
    for start in range(0, len(positions), SCAN_ROWS):
        block = positions[start : start + SCAN_ROWS]
        found = [look.at(cells, by_content=False) for cells in look.cells(block)]
        sizes = np.array([-1 if row.is_missing else row.size for row in found])
        mtimes = np.array([row.mtime_ns for row in found])
        moved.append(block[(sizes != states.sizes[block]) | (mtimes != states.mtimes_ns[block])])
    return np.concatenate(moved).astype(np.int64) if moved else np.empty(0, np.int64)


def _is_as_found(states: RowStates, at: int) -> bool:
    """Whether a row's only file is surely the same; a folder, a tar or a missing file is looked at again."""
    try:
        state = os.stat(states.paths[at])  # noqa: PTH116
    except (OSError, ValueError):
        return False
    return bool(state.st_size == states.sizes[at] and state.st_mtime_ns == states.mtimes_ns[at])


def _hash_unsettled(
    states: RowStates,
    start: int,
    rows: Sequence[Sequence[Any]],
    digests: Sequence[int],
    look: _Looker,
    checksum: bool,
    content_rows: Array | None,
    settled_ns: int,
) -> None:
    """Replace the fingerprints of those rows whose times say too little by ones of their content."""
    block = slice(start, start + len(rows))
    unsettled = states.mtimes_ns[block] > settled_ns
    states.lasting_by_content[block] = checksum | unsettled
    states.by_content[block] = checksum | unsettled
    if content_rows is not None:
        states.by_content[block] |= content_rows[block]
    if checksum:
        return
    for at in np.flatnonzero(states.by_content[block] & (states.sizes[block] >= 0)).tolist():
        fingerprint = _fingerprint(digests[at], look.at(rows[at], by_content=True))
        states.fingerprints[start + at] = fingerprint
        if unsettled[at]:
            states.lasting[start + at] = fingerprint


def _fingerprint(digest: int, found: _Files) -> int:
    """64 bits of the row's values and files; 0 stands for a row that cannot be up to date."""
    if found.is_missing:
        return 0
    return int.from_bytes(blake3(f"{digest}|{found.text}".encode()).digest(length=8), "little") or 1


class _Looker:
    """Looks at the files that a manifest's rows name: about 6 us a row of one file."""

    def __init__(self, manifest: Manifest, columns: Sequence[str], allow_outside: bool) -> None:
        self._manifest = manifest
        self._columns = [name for name in columns if name in manifest.path_columns]
        self._base = os.fspath(manifest.base_path)
        self._allow_outside = allow_outside

    @property
    def num_columns(self) -> int:
        return len(self._columns)

    def cells(self, indices: Array) -> list[tuple[Any, ...]]:
        """The path cells of these rows: texts, None, and SourceFiles for members of a tar."""
        if not self._columns:
            return [()] * len(indices)
        return list(zip(*(self._manifest.cells(name, indices) for name in self._columns), strict=True))

    def at(self, cells: Sequence[Any], by_content: bool) -> _Files:
        """What the files of one row's cells add up to; an unusable path is a file that is not there."""
        found = _Files()
        for cell in cells:
            if cell is None:
                continue
            try:
                place = self._add(found, cell, by_content)
            except (OSError, SampleError):
                place, found.is_missing = str(getattr(cell, "name", cell)), True
            found.path = found.path or place
        return found

    def _add(self, found: _Files, cell: Any, by_content: bool) -> str:
        """Count one cell's file, or every file of its folder; where it stands out."""
        if isinstance(cell, SourceFile):
            path, state, offset, size = str(cell.path), os.stat(cell.path), cell.offset, cell.size  # noqa: PTH116
        else:
            path, state = find_path(str(cell), self._base, self._allow_outside)
            offset, size = 0, None
        for file, stat in [(path, state)] if S_ISREG(state.st_mode) else _in_folder(path):
            found.size += stat.st_size if size is None else size
            found.mtime_ns = max(found.mtime_ns, stat.st_mtime_ns)
            known = _content(cell, file) if by_content else f"{stat.st_size},{stat.st_mtime_ns}"
            found.text += f"{os.path.basename(file)},{offset},{known};"  # noqa: PTH119
        return path if size is None else f"{path}:{cell.name}"


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
