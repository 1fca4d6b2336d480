"""Where samples stand in the files of their shards: bytes that can be announced or read ahead."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np

from flatout.errors import LoaderError, StoreCorruptError
from flatout.loader.fixed import load_table
from flatout.loader.places import Places
from flatout.store import ShardReader, StoreReader, layout
from flatout.types import Array, FieldSpec


def byte_ranges(shard: ShardReader, spec: FieldSpec, rows: Array) -> Array:
    """(rows, 2): first byte and end of each sample of one field; no rows where the field has no bytes."""
    if spec.compression != "none":
        chunks = shard.tables[layout.chunks_path(spec.name)][rows]
        return np.stack([chunks[:, 0], chunks.sum(axis=1)], axis=1)
    offset, item = shard.offset_of(spec.name), spec.stored_dtype.itemsize
    if offset is None:
        return np.empty((0, 2), np.int64)
    if spec.is_ragged:
        edges = shard.tables[layout.offsets_path(spec.name)]
        return offset + np.stack([edges[rows], edges[rows + 1]], axis=1) * item
    row_bytes = item * math.prod(n or 0 for n in spec.shape)
    return offset + np.stack([rows, rows + 1], axis=1) * row_bytes


def split_ranges(store: StoreReader, spec: FieldSpec, places: Places) -> Array:
    """(samples, 2): first byte and end of each sample of a split within its own shard's file.

    0 and 0 where the field has no bytes, or where the shard's tables cannot be read: whoever reads a sample
    of it will say so.
    """
    tables = []
    for number in store.announced():
        meta = store.meta.shards[number]
        found = np.empty((0, 2), np.int64)
        with suppress(StoreCorruptError, LoaderError):
            found = byte_ranges(store.shard(number), spec, np.arange(meta.rows))
        tables.append(found if len(found) else np.zeros((meta.rows, 2), np.int64))
    return load_table(tables, places)
