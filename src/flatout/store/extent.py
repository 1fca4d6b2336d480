"""How far a field reaches: its samples' shapes, their values, and the bytes that they take when compressed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from flatout.store import layout
from flatout.store.index import length_column, rows_by_shard
from flatout.store.measure import Measure, is_measured
from flatout.store.reader import StoreReader
from flatout.store.shard_reader import ShardReader
from flatout.types import Array, FieldSpec

RANGE_BYTES = 1 << 30
"""At most this much of a field is read for its value range; the rest is skipped evenly and said so."""
RANGE_SAMPLES = 100_000
"""The same where samples are restored one by one: 15 us each, and a store may have 100 million."""
BLOCK_VALUES = 1 << 20
"""Values of plain samples that are measured together."""


def compressed_bytes(store: StoreReader, spec: FieldSpec) -> int:
    """What the compressed samples take, as each shard's table of chunks has it."""
    chunks = layout.chunks_path(spec.name)
    return sum(int(shard.tables[chunks][rows, 1].sum()) for shard, _, rows in rows_in_shards(store))


def values_in_store(store: StoreReader, spec: FieldSpec, num_bytes: int) -> dict[str, Any]:
    """Lowest, highest and mean finite value of samples spread evenly over the store, and how many are none."""
    if not is_measured(spec) or not len(store) or not num_bytes:
        return {}
    is_plain = not spec.is_ragged and spec.encoding == "none" and spec.compression == "none"
    most = len(store) if is_plain else min(len(store), RANGE_SAMPLES)
    count = max(1, min(most, int(len(store) * RANGE_BYTES / num_bytes)))
    measure = Measure()
    positions = np.unique(np.linspace(0, len(store) - 1, count).astype(np.int64))
    for shard, _, rows in rows_in_shards(store, positions):
        for samples in _samples(shard, spec, rows, is_plain=is_plain):
            measure.add(samples, len(samples) if is_plain else 1)
    return measure.summary()


def _samples(shard: ShardReader, spec: FieldSpec, rows: Array, *, is_plain: bool) -> Iterator[Array]:
    """These rows of a field: (N, ...) of plain ones, else one restored sample after the other."""
    if not is_plain:
        yield from (shard.read(spec.name, row) for row in rows.tolist())
        return
    data, step = shard.data(spec.name), max(1, BLOCK_VALUES // max(1, math.prod(n or 0 for n in spec.shape)))
    yield from (data[rows[at : at + step]] for at in range(0, len(rows), step))


def rows_in_shards(
    store: StoreReader, positions: Array | None = None
) -> Iterator[tuple[ShardReader, Array, Array]]:
    """Each shard with samples at these positions (all by default), which they are, and their rows in it."""
    shards, rows = store.numbers["shard"], store.numbers["row"]
    if positions is None:
        positions = np.arange(len(store))
    for number, found in enumerate(rows_by_shard(shards[positions], len(store.meta.shards))):
        if len(found):
            yield store.shard(number), positions[found], rows[positions[found]]


def shapes_in_store(store: StoreReader, spec: FieldSpec) -> Array:
    """(samples, axes): the shape of every sample of a ragged field."""
    shapes = np.tile(np.array([n or 0 for n in spec.shape], np.int64), (len(store), 1))
    if not layout.has_shapes(spec):
        others = math.prod(n for n in spec.shape if n is not None)
        shapes[:, spec.shape.index(None)] = store.numbers[length_column(spec.name)] // others
        return shapes
    for shard, mine, rows in rows_in_shards(store):
        shapes[mine] = shard.tables[layout.shapes_path(spec.name)][rows]
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
