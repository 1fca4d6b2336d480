"""The share of padding in a loader's batches, from lengths alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from flatout.loader.batches import Batches
from flatout.loader.lengths import RaggedRule, length_axis, ragged_shapes
from flatout.loader.order import Order
from flatout.store import StoreReader
from flatout.types import Array


def batch_rows(batches: Batches, epoch: int) -> tuple[Array, Array]:
    """This rank's samples of an epoch, one batch after the other, and the size of each batch."""
    lookup = batches.lookup()
    found = [lookup.find(epoch, batch)[0] for batch in range(batches.num_batches)]
    return np.concatenate([np.empty(0, np.int64), *found]), np.array([len(rows) for rows in found], np.int64)


def plain_rows(order: Order, epoch: int, sizes: Array) -> tuple[Array, Array]:
    """The epoch's samples as the order has them, in batches of the same sizes as far as they reach."""
    sizes = sizes[: int(np.searchsorted(np.cumsum(sizes), order.num_samples, side="right"))]
    return order.stretch(epoch, 0, int(sizes.sum())), sizes


def padding_share(
    store: StoreReader, positions: Array, sizes: Array, rule: RaggedRule, fields: Sequence[str] | None = None
) -> float:
    """Padded cells / all cells of the ragged fields of batches; 0.0 where nothing is ragged.

    Args:
        positions: positions in the store of the samples of all batches, one after the other.
        sizes: samples of each batch.
        fields: those that are read; all by default.
    """
    if not len(sizes):
        return 0.0
    starts = np.cumsum(sizes) - sizes
    filled = total = 0
    for spec in (store.fields[name] for name in (store.fields if fields is None else fields)):
        if not spec.is_ragged:
            continue
        shapes = ragged_shapes(store, spec, positions)
        fixed = math.prod(n for n in spec.shape if n is not None)
        cells = _cells(shapes, length_axis(spec), rule, starts)
        filled += fixed * int(cells[0].sum())
        total += fixed * int((cells[1] * sizes).sum())
    return 1.0 - filled / total if total else 0.0


def _cells(shapes: Mapping[int, Array], axis: int, rule: RaggedRule, starts: Array) -> tuple[Array, Array]:
    """Cells that each sample fills, and cells of a row of each batch, along the axes that vary."""
    filled, padded = np.ones(1, np.int64), np.ones(1, np.int64)
    for at, lengths in shapes.items():
        kept = rule.kept(lengths) if at == axis else lengths
        longest = np.maximum.reduceat(kept, starts)
        filled = filled * kept
        padded = padded * (rule.padded(longest) if at == axis else longest)
    return filled, padded
