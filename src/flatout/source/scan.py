"""The state of every row's source files: what tells a later prepare that a sample is up to date."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flatout.source.look import Cells, Looker, are_as_found
from flatout.source.manifest import Manifest
from flatout.types import Array

SETTLED_NS = 2_000_000_000
"""A file changed within 2 s of the scan may change again with the same time stamp: its content counts."""
SCAN_ROWS = 4096
"""Rows looked at in one piece: small enough that processes which share the work end together."""

Part = tuple[list[Cells], list[int]]
Spread = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""Like `map`; whoever has processes at hand gives one that uses them."""


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
    stamps: Array
    """The fingerprint by sizes and times of all files: it tells whether one changed while it was read."""

    def __len__(self) -> int:
        return len(self.paths)


def scan_rows(
    manifest: Manifest,
    columns: Sequence[str],
    *,
    allow_outside: bool,
    checksum: bool,
    content_rows: Array | None,
    spread: Spread = map,
) -> RowStates:
    """Look at every row's files. `content_rows` marks rows whose contents are hashed in any case.

    Args:
        columns: columns whose values decide the samples; paths among them are looked at as files.
    """
    names = _file_columns(manifest, columns)
    look = Looker(os.fspath(manifest.base_path), allow_outside, checksum, _by_name(names))
    settled_ns = time.time_ns() - SETTLED_NS
    dtypes = ("i8", "i8", "u8", "?", "u8", "?", "u8")
    states = RowStates([], *(np.zeros(len(manifest), dtype) for dtype in dtypes))
    blocks = list(_blocks(np.arange(len(manifest))))
    digests = np.zeros(len(manifest), np.uint64)

    def first_parts() -> Iterator[Part]:
        """Made as they are asked for: rows are hashed here while others look at files."""
        for block in blocks:
            digests[block] = manifest.digests(columns, block)
            yield _part(manifest, names, block, digests[block])

    for block, found in zip(blocks, spread(look, first_parts()), strict=True):
        states.paths.extend(found.paths)
        states.sizes[block], states.mtimes_ns[block] = found.sizes, found.mtimes_ns
        states.lasting[block] = states.fingerprints[block] = found.fingerprints
        states.stamps[block] = found.stamps
    unsettled = states.mtimes_ns > settled_ns
    states.lasting_by_content[:] = checksum | unsettled
    states.by_content[:] = (
        states.lasting_by_content if content_rows is None else checksum | unsettled | content_rows
    )
    if not checksum:
        by_content = np.flatnonzero(states.by_content & (states.sizes >= 0))
        parts = (_part(manifest, names, block, digests[block]) for block in _blocks(by_content))
        for block, found in zip(
            _blocks(by_content), spread(replace(look, by_content=True), parts), strict=True
        ):
            states.fingerprints[block] = found.fingerprints
            states.lasting[block] = np.where(unsettled[block], found.fingerprints, states.lasting[block])
    return states


def rows_that_moved(
    manifest: Manifest,
    columns: Sequence[str],
    positions: Array,
    states: RowStates,
    *,
    allow_outside: bool,
    spread: Spread = map,
) -> Array:
    """Which of these rows have a file that is not as the scan found it: it changed while being read."""
    names = _file_columns(manifest, columns)
    if len(names) == 1:
        parts = (_records(states, block) for block in _blocks(positions))
        are_same = [is_same for part in spread(are_as_found, parts) for is_same in part]
        positions = positions[~np.array(are_same, bool)]
    look = Looker(os.fspath(manifest.base_path), allow_outside, order=_by_name(names))
    moved = []
    for block in _blocks(positions):
        found = look(_part(manifest, names, block, manifest.digests(columns, block)))
        moved.append(block[found.stamps != states.stamps[block]])
    return np.concatenate(moved).astype(np.int64) if moved else np.empty(0, np.int64)


def _blocks(positions: Array) -> Iterator[Array]:
    for start in range(0, len(positions), SCAN_ROWS):
        yield positions[start : start + SCAN_ROWS]


def _part(manifest: Manifest, names: Sequence[str], block: Array, digests: Array) -> Part:
    """What a look at these rows needs: their path cells, and a hash of their values."""
    return _cells(manifest, names, block), digests.tolist()


def _cells(manifest: Manifest, names: Sequence[str], positions: Array) -> list[Cells]:
    """What the path columns of these rows hold."""
    if not names:
        return [()] * len(positions)
    return list(zip(*(manifest.cells(name, positions) for name in names), strict=True))


def _records(states: RowStates, block: Array) -> tuple[list[str], list[int], list[int]]:
    paths = [states.paths[at] for at in block.tolist()]
    return paths, states.sizes[block].tolist(), states.mtimes_ns[block].tolist()


def _by_name(names: Sequence[str]) -> tuple[int, ...]:
    """The order of the names: fields in another order are the same fields."""
    return tuple(sorted(range(len(names)), key=names.__getitem__))


def _file_columns(manifest: Manifest, columns: Sequence[str]) -> list[str]:
    return [name for name in columns if name in manifest.path_columns]
