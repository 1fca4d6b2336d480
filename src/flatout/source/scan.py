"""The state of every row's source files: what tells a later prepare that a sample is up to date."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from blake3 import blake3

from flatout.errors import SampleError
from flatout.source.files import SourceFile, hash_file
from flatout.source.manifest import Manifest
from flatout.source.paths import resolve_path
from flatout.types import Array, Limits, Row

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
    file_columns = _file_columns(manifest, columns)
    settled_ns = time.time_ns() - SETTLED_NS
    states = RowStates([], *(np.zeros(len(manifest), dtype) for dtype in ("i8", "i8", "u8", "?", "u8", "?")))
    for start in range(0, len(manifest), SCAN_ROWS):
        indices = range(start, min(start + SCAN_ROWS, len(manifest)))
        for at, row in zip(indices, manifest.rows(indices), strict=True):
            files = _sources(row, file_columns, manifest.base_path, allow_outside)
            content = content_rows is not None and bool(content_rows[at])
            _record(states, at, int(digests[at]), files, checksum, content, settled_ns)
    return states


def rows_that_moved(
    manifest: Manifest, columns: Sequence[str], positions: Array, states: RowStates, *, allow_outside: bool
) -> Array:
    """Which of these rows have files that are not as the scan found them: they changed while being read."""
    file_columns = _file_columns(manifest, columns)
    moved = []
    for start in range(0, len(positions), SCAN_ROWS):
        block = positions[start : start + SCAN_ROWS]
        for at, row in zip(block.tolist(), manifest.rows(block), strict=True):
            found = _look_at(_sources(row, file_columns, manifest.base_path, allow_outside), by_content=False)
            size = -1 if found.is_missing else found.size
            if size != states.sizes[at] or found.mtime_ns != states.mtimes_ns[at]:
                moved.append(at)
    return np.array(moved, dtype=np.int64)


def _record(
    states: RowStates,
    at: int,
    digest: int,
    files: list[SourceFile],
    checksum: bool,
    content: bool,
    settled_ns: int,
) -> None:
    found = _look_at(files, by_content=checksum)
    is_settled = found.mtime_ns <= settled_ns
    states.paths.append(found.path)
    states.sizes[at] = -1 if found.is_missing else found.size
    states.mtimes_ns[at] = found.mtime_ns
    states.by_content[at] = checksum or content or not is_settled
    states.lasting_by_content[at] = checksum or not is_settled
    if found.is_missing:
        return
    states.lasting[at] = states.fingerprints[at] = _fingerprint(digest, found.text)
    if states.by_content[at] and not checksum:
        states.fingerprints[at] = _fingerprint(digest, _look_at(files, by_content=True).text)
    if states.lasting_by_content[at]:
        states.lasting[at] = states.fingerprints[at]


def _fingerprint(digest: int, text: str) -> int:
    """Never 0, which stands for a row that cannot be up to date."""
    return int.from_bytes(blake3(f"{digest}|{text}".encode()).digest(length=8), "little") or 1


def _look_at(files: list[SourceFile], by_content: bool) -> _Files:
    found = _Files(path=_label(files[0]) if files else "")
    for file in files:
        try:
            for path, stat in _stat(file.path):
                found.size += stat.st_size if file.size is None else file.size
                found.mtime_ns = max(found.mtime_ns, stat.st_mtime_ns)
                state = _content(file, path) if by_content else f"{stat.st_size},{stat.st_mtime_ns}"
                found.text += f"{os.path.basename(path)},{file.offset},{state};"  # noqa: PTH119
        except (OSError, SampleError):
            found.is_missing = True
    return found


def _content(file: SourceFile, path: str) -> str:
    """Hash of a file, or of a tar's member alone: else each of its rows would read the whole tar."""
    if file.size is None:
        return hash_file(Path(path))
    return blake3(file.read_bytes(Limits(file.size))).hexdigest()


def _stat(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The file, or every file of a folder (a DICOM series), in order of name."""
    stat = os.stat(path)  # noqa: PTH116  a Path's own stat costs twice as much
    if not os.path.isdir(path):  # noqa: PTH112
        yield str(path), stat
        return
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        if entry.is_file():
            yield entry.path, entry.stat()


def _file_columns(manifest: Manifest, columns: Sequence[str]) -> list[str]:
    return [name for name in columns if name in manifest.path_columns]


def _sources(row: Row, columns: Sequence[str], base_path: Path, allow_outside: bool) -> list[SourceFile]:
    """The files that a row's cells name; an unusable path becomes a file that is not there."""
    files = []
    for column in columns:
        value = row.values.get(column)
        if isinstance(value, SourceFile):
            files.append(value)
        elif value is not None:
            try:
                files.append(SourceFile.whole(resolve_path(str(value), base_path, allow_outside)))
            except SampleError:
                files.append(SourceFile(Path(os.devnull) / "refused", str(value)))
    return files


def _label(file: SourceFile) -> str:
    return str(file.path) if file.size is None else f"{file.path}:{file.name}"
