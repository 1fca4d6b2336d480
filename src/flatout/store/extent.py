"""How far a field reaches: the shapes of its samples, and the bytes that they take when compressed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flatout.store import layout
from flatout.store.index import length_column
from flatout.store.reader import StoreReader
from flatout.types import Array, FieldSpec


def compressed_bytes(store: StoreReader, spec: FieldSpec) -> int:
    """What the compressed samples take, as each shard's table of chunks has it."""
    total = 0
    for number in range(len(store.meta.shards)):
        rows = store.numbers["row"][store.numbers["shard"] == number]
        if len(rows):
            total += int(store.shard(number).tables[layout.chunks_path(spec.name)][rows, 1].sum())
    return total


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
