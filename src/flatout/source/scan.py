"""The state of every row's source files: what tells a later prepare that a sample is up to date."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flatout.source.look import Cells, Looker, settled_ns
from flatout.source.manifest import Manifest
from flatout.source.sight import Sighter, Sights
from flatout.types import Array

SCAN_ROWS = 4096
"""Rows looked at in one piece: small enough that processes which share the work end together."""

Part = tuple[list[Cells], list[int]]
Spread = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""Like `map`; whoever has processes at hand gives one that uses them."""


@dataclass(frozen=True, slots=True)
class RowStates:
    """One entry a row. Where nobody has looked, or a file is missing: size -1, fingerprint 0, never a match."""

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
    """The fingerprint by sizes and times of all files, whatever the others are by."""

    def __len__(self) -> int:
        return len(self.paths)

    def record(self, positions: Array, sights: Sights) -> None:
        """Rows that were made are recorded as they were when they were read."""
        self._set_paths(positions, sights.paths)
        self.sizes[positions], self.mtimes_ns[positions] = sights.sizes, sights.mtimes_ns
        for fingerprints in (self.fingerprints, self.lasting):
            fingerprints[positions] = sights.fingerprints
        for by_content in (self.by_content, self.lasting_by_content):
            by_content[positions] = sights.by_content

    def _set_paths(self, positions: Array, paths: list[str]) -> None:
        if len(positions) and positions[-1] - positions[0] + 1 == len(positions):  # all neighbours: at once
            self.paths[int(positions[0]) : int(positions[-1]) + 1] = paths
            return
        for at, path in zip(positions.tolist(), paths, strict=True):
            self.paths[at] = path


def scan_rows(
    manifest: Manifest,
    columns: Sequence[str],
    *,
    allow_outside: bool,
    checksum: bool,
    content_rows: Array | None,
    rows: Array | None = None,
    spread: Spread = map,
) -> RowStates:
    """Look at rows' files. `content_rows` marks rows whose contents are hashed in any case.

    Args:
        columns: columns whose values decide the samples; paths among them are looked at as files.
        rows: positions of those that are looked at; all by default.
    """
    look, names = _looker(manifest, columns, allow_outside, checksum)
    latest_ns = settled_ns()
    dtypes = ("i8", "i8", "u8", "?", "u8", "?", "u8")
    states = RowStates([""] * len(manifest), *(np.zeros(len(manifest), dtype) for dtype in dtypes))
    states.sizes[:] = -1
    blocks = list(_blocks(np.arange(len(manifest)) if rows is None else rows))
    digests = np.zeros(len(manifest), np.uint64)

    def first_parts() -> Iterator[Part]:
        """Made as they are asked for: rows are hashed here while others look at files."""
        for block in blocks:
            digests[block] = manifest.digests(columns, block)
            yield _part(manifest, names, block, digests[block])

    for block, found in zip(blocks, spread(look, first_parts()), strict=True):
        states._set_paths(block, found.paths)
        states.sizes[block], states.mtimes_ns[block] = found.sizes, found.mtimes_ns
        states.lasting[block] = states.fingerprints[block] = found.fingerprints
        states.stamps[block] = found.stamps
    unsettled = states.mtimes_ns > latest_ns
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


def make_sighter(
    manifest: Manifest, columns: Sequence[str], *, allow_outside: bool, checksum: bool, is_early: bool = False
) -> Sighter:
    """What looks at the files of rows that are made, by the same rules as `scan_rows`."""
    look, names = _looker(manifest, columns, allow_outside, checksum)
    return Sighter(look, tuple(names), manifest.cycle_columns, is_early)


def _looker(
    manifest: Manifest, columns: Sequence[str], allow_outside: bool, checksum: bool
) -> tuple[Looker, list[str]]:
    """What looks at files, and the columns of their paths."""
    names = [name for name in columns if name in manifest.path_columns]
    return Looker(os.fspath(manifest.base_path), allow_outside, checksum, _by_name(names)), names


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


def _by_name(names: Sequence[str]) -> tuple[int, ...]:
    """The order of the names: fields in another order are the same fields."""
    return tuple(sorted(range(len(names)), key=names.__getitem__))
