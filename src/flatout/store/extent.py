"""How far a field reaches: its samples' shapes, their values, and the bytes that they take when compressed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flatout.store import layout
from flatout.store.index import length_column
from flatout.store.measure import Measure, is_measured
from flatout.store.reader import StoreReader
from flatout.types import Array, FieldSpec

RANGE_BYTES = 1 << 30
"""At most this much of a field is read for its value range; the rest is skipped evenly and said so."""


def compressed_bytes(store: StoreReader, spec: FieldSpec) -> int:
    """What the compressed samples take, as each shard's table of chunks has it."""
    total = 0
    for number in range(len(store.meta.shards)):
        rows = store.numbers["row"][store.numbers["shard"] == number]
        if len(rows):
            total += int(store.shard(number).tables[layout.chunks_path(spec.name)][rows, 1].sum())
    return total


def values_in_store(store: StoreReader, spec: FieldSpec, num_bytes: int) -> dict[str, Any]:
    """Lowest, highest and mean finite value of samples spread evenly over the store, and how many are none."""
    if not is_measured(spec) or not len(store) or not num_bytes:
        return {}
    count = max(1, min(len(store), int(len(store) * RANGE_BYTES / num_bytes)))
    measure = Measure()
    positions = np.unique(np.linspace(0, len(store) - 1, count).astype(np.int64))
    shards, rows = store.numbers["shard"][positions], store.numbers["row"][positions]
    for shard, row in zip(shards.tolist(), rows.tolist(), strict=True):
        measure.add(store.shard(shard).read(spec.name, row))
    return measure.summary()


def shapes_in_store(store: StoreReader, spec: FieldSpec) -> Array:
    """(samples, axes): the shape of every sample of a ragged field."""
    shapes = np.array([[n or 0 for n in spec.shape]] * len(store), np.int64).reshape(-1, len(spec.shape))
    if not layout.has_shapes(spec):
        others = math.prod(n for n in spec.shape if n is not None)
        shapes[:, spec.shape.index(None)] = store.numbers[length_column(spec.name)] // others
        return shapes
    for number in range(len(store.meta.shards)):
        mine = store.numbers["shard"] == number
        if mine.any():
            tables = store.shard(number).tables
            shapes[mine] = tables[layout.shapes_path(spec.name)][store.numbers["row"][mine]]
    return shapes


def spread(spec: FieldSpec, shapes: Array) -> dict[str, Any]:
    """How the shapes (samples, axes) of a ragged field differ."""
    if not len(shapes):
        return {}
    pairs = list(zip(shapes.min(axis=0).tolist(), shapes.max(axis=0).tolist(), strict=True))
    free = [axis for axis, size in enumerate(spec.shape) if size is None]
    varying = free if len(free) == 1 else [axis for axis in free if pairs[axis][0] < pairs[axis][1]]
    if len(varying) != 1:
        return {"shapes": pairs}
    steps = shapes[:, varying[0]]
    low, high = int(steps.min()), int(steps.max())
    return {"shapes": pairs, "lengths": {"shortest": low, "median": int(np.median(steps)), "longest": high}}
