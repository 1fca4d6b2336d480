"""Fields of one shape: rows of many shards gathered into a buffer with one call."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from flatout.loader.announce import announce, are_resident, expect_no_neighbours
from flatout.loader.mapped import Extent, MappedRows, can_map, map_rows
from flatout.loader.places import Places
from flatout.loader.pread import Files, PreadRows
from flatout.loader.rows import FixedRows
from flatout.store import StoreReader
from flatout.types import Array, FieldSpec

SMALL_BYTES = 64
"""Rows up to this size (labels, scalars, scales) are loaded when the loader opens."""
STREAM_BYTES = 4 << 20
"""Batches from this size on are written past the CPU's caches, in which they would not be found any more.
Samples/s: (3, 224, 224) uint8 in batches of 64 from 81,000 to 133,000, (1, 96, 160, 160) float16 from 3,000 to
4,500."""

_log = logging.getLogger(__name__)


Stream = Callable[[int, int, Array, int], None]
"""Address of a table, bytes of a row, places of rows and an address to copy them to."""


@dataclass(frozen=True)
class LoadedRows(FixedRows):
    """All rows in memory."""

    table: Array

    def gather(self, found: Array, out: Array) -> None:
        np.take(self.table, found, axis=0, out=out[: len(found)], mode="clip")


@dataclass(frozen=True)
class OneRange(FixedRows):
    """All shards mapped into one range; one take a batch."""

    mapped: MappedRows
    places: Places
    stream: Stream | None = None
    """How large batches are gathered; None: as small ones."""

    def look_up(self, positions: Array) -> Array:
        at = self.mapped.first_row[self.places.shards[positions]]
        at += self.places.rows[positions]
        return at

    def gather(self, found: Array, out: Array) -> None:
        rows = self.mapped.rows
        is_large = len(found) * rows[0].nbytes >= STREAM_BYTES
        if is_large and not are_resident(rows, found):
            # Cold since nobody announces any more: page by page, 4 MB took 6 s beside a tenant of the disk.
            announce(self.mapped, found)
        if is_large and self.stream is not None:
            self.stream(rows.ctypes.data, rows[0].nbytes, found, out.ctypes.data)
            return
        # mode="clip" lets NumPy write straight into `out`; the loader has checked the bounds of the positions.
        np.take(rows, found, axis=0, out=out[: len(found)], mode="clip")

    def announce(self, found: Array) -> None:
        announce(self.mapped, found)


@dataclass(frozen=True)
class RowByRow(FixedRows):
    """Each shard mapped on its own; a copy a row."""

    store: StoreReader
    name: str
    places: Places

    def gather(self, found: Array, out: Array) -> None:
        shards, rows = self.places.shards[found].tolist(), self.places.rows[found].tolist()
        for at, (shard, row) in enumerate(zip(shards, rows, strict=True)):
            out[at] = self.store.shard(shard).data(self.name)[row]


def open_fixed(
    store: StoreReader, spec: FieldSpec, places: Places, files: Files | None = None, batch_size: int = 1
) -> FixedRows:
    """The fastest reader that this field and system allow.

    Args:
        files: given, rows are read by calls; otherwise shards are mapped.
        batch_size: rows that are gathered at once, as a rule.
    """
    shape = tuple(n or 0 for n in spec.shape)
    row_bytes = spec.stored_dtype.itemsize * math.prod(shape)
    if is_small(spec):
        return LoadedRows(load_rows(store, spec, places))
    extents = extents_of(store, spec)
    if files is not None:
        return PreadRows(extents, places, row_bytes, files)
    if can_map(extents, row_bytes):
        mapped = map_rows(extents, spec.stored_dtype, shape)
        expect_no_neighbours(mapped.rows)
        is_large = row_bytes * batch_size >= STREAM_BYTES  # for others Numba, half a second, is not imported
        return OneRange(mapped, places, stream_rows() if is_large else None)
    return RowByRow(store, spec.name, places)


@cache
def stream_rows() -> Stream | None:
    """The compiled gather, or None where Numba is not installed or does not know this Python or NumPy."""
    try:
        from flatout.loader.copy_kernels import gather
    except ImportError as error:
        _log.info("large batches are copied without compiled code: %s", error)
        return None
    gather(0, 1, np.empty(0, np.int64), 0)  # compiled here, before there are threads that a fork could cut off
    return gather


def is_small(spec: FieldSpec) -> bool:
    """Whether all rows of a field are better loaded at once."""
    is_plain = spec.compression == "none" and not spec.is_ragged
    return is_plain and spec.stored_dtype.itemsize * math.prod(n or 0 for n in spec.shape) <= SMALL_BYTES


def load_rows(store: StoreReader, spec: FieldSpec, places: Places) -> Array:
    """A small field of every sample of the split, in order."""
    tables = [store.shard(number).data(spec.name) for number in store.announced(spec.name)]
    return load_table(tables, places).astype(spec.stored_dtype, copy=False)


def load_table(tables: Sequence[Array], places: Places) -> Array:
    """Rows of one table a shard, picked in the split's order."""
    first = np.cumsum([0, *(len(table) for table in tables)])
    joined = np.concatenate(tables) if tables else np.empty(0)
    picked: Array = joined[first[places.shards] + places.rows]
    return picked


def extents_of(store: StoreReader, spec: FieldSpec) -> list[Extent]:
    """Where each shard keeps this field's rows."""
    shards = [store.shard(number) for number in range(len(store.meta.shards))]
    return [Extent(shard.path, shard.offset_of(spec.name) or 0, len(shard)) for shard in shards]
