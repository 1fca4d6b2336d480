"""Fields of one shape: rows of many shards gathered into a buffer with one call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flatout.loader.announce import announce
from flatout.loader.mapped import Extent, MappedRows, can_map, map_rows
from flatout.loader.places import Places
from flatout.loader.pread import Files, PreadRows
from flatout.loader.rows import FixedRows
from flatout.store import StoreReader
from flatout.types import Array, FieldSpec

SMALL_BYTES = 64
"""Rows up to this size (labels, scalars, scales) are loaded when the loader opens."""


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

    def look_up(self, positions: Array) -> Array:
        at = self.mapped.first_row[self.places.shards[positions]]
        at += self.places.rows[positions]
        return at

    def gather(self, found: Array, out: Array) -> None:
        # mode="clip" lets NumPy write straight into `out`; the loader has checked the bounds of the positions.
        np.take(self.mapped.rows, found, axis=0, out=out[: len(found)], mode="clip")

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


def open_fixed(store: StoreReader, spec: FieldSpec, places: Places, files: Files | None = None) -> FixedRows:
    """The fastest reader that this field and system allow.

    Args:
        files: given, rows are read by calls; otherwise shards are mapped.
    """
    shape = tuple(n or 0 for n in spec.shape)
    row_bytes = spec.stored_dtype.itemsize * math.prod(shape)
    if is_small(spec):
        return LoadedRows(load_rows(store, spec, places))
    extents = extents_of(store, spec)
    if files is not None:
        return PreadRows(extents, places, row_bytes, files)
    if can_map(extents, row_bytes):
        return OneRange(map_rows(extents, spec.stored_dtype, shape), places)
    return RowByRow(store, spec.name, places)


def is_small(spec: FieldSpec) -> bool:
    """Whether all rows of a field are better loaded at once."""
    is_plain = spec.compression == "none" and not spec.is_ragged
    return is_plain and spec.stored_dtype.itemsize * math.prod(n or 0 for n in spec.shape) <= SMALL_BYTES


def load_rows(store: StoreReader, spec: FieldSpec, places: Places) -> Array:
    """A small field of every sample of the split, in order."""
    tables = [store.shard(number).data(spec.name) for number in range(len(store.meta.shards))]
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
