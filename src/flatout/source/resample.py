"""Values between grid points, one axis after the other: linear and nearest neighbour.

A sparse product with two weights a row beats the alternatives on one core (ms, 35 x 50 x 35 to 44 x 62 x 44
and 256 x 256 x 100 to 366 x 366 x 143): sparse 0.16 and 74, gather and lerp 0.27 and 96, dense BLAS 0.32 and
193 (left to its two threads 14 and 880), `scipy.ndimage.map_coordinates` 5.1 for the small one. It starts no
threads, and its result does not depend on their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from flatout.types import Array

_NUM_BLOCK_VALUES = 1 << 15
_NUM_LARGE_VALUES = 1 << 18
_NUM_KEPT_ROWS = 1 << 13


class Positions:
    """Where new grid points stand along an old axis: `offset + step * j`, clamped to the axis' ends."""

    __slots__ = ("num_new", "num_old", "offset", "step")

    def __init__(self, num_old: int, num_new: int, step: float, offset: float) -> None:
        self.num_old, self.num_new, self.step, self.offset = num_old, num_new, step, offset

    @property
    def is_identity(self) -> bool:
        return self.num_old == self.num_new and self.step == 1.0 and self.offset == 0.0

    def values(self) -> Array:
        found: Array = np.clip(self.offset + self.step * np.arange(self.num_new), 0, self.num_old - 1)
        return found

    def nearest(self) -> Array:
        """Index of the nearest old point; the later one of two equally near."""
        return np.floor(self.values() + 0.5).astype(np.intp)

    def neighbours(self) -> tuple[Array, Array, Array]:
        """Indices of the old points before and after each new one, and the weight of the later."""
        values = self.values()
        before = np.floor(values).astype(np.intp)
        after = np.minimum(before + 1, self.num_old - 1)
        return before, after, values - before


def sample_linear(array: Array, axes: Sequence[Positions], dtype: np.dtype[Any]) -> Array:
    """(C, X, Y, Z) -> float `dtype` at the new points of X, Y, Z; the array itself where none is new."""
    if all(positions.is_identity for positions in axes):
        return array
    if len(array) == 1:
        return _sample_volume(array[0], axes, dtype)[None]
    return np.stack([_sample_volume(channel, axes, dtype) for channel in array])


def sample_nearest(array: Array, axes: Sequence[Positions]) -> Array:
    """(C, ...) of any dtype -> the values of the nearest old points along each axis after the first."""
    order = memory_order(array)
    stored = array.transpose(order)
    for axis, positions in enumerate(axes, start=1):
        if not positions.is_identity:
            stored = stored.take(positions.nearest(), axis=order.index(axis))
    return stored.transpose(np.argsort(order))


def num_between(array: Array, sizes: Sequence[float], *, is_linear: bool) -> float:
    """Values of the largest array on the way from (C, ...) to new `sizes`, the result itself among them."""
    if is_linear and array.ndim == 4:
        order = memory_order(array[0])  # as `_sample_volume` goes: the innermost axis comes last
        inner = array.shape[1 + order[2]]
        return float(max(math.prod(sizes), sizes[order[0]] * sizes[order[1]] * inner))
    largest, shape = 0.0, [float(size) for size in array.shape]
    for axis, size in enumerate(sizes, start=1):
        shape[axis] = size
        largest = max(largest, math.prod(shape))
    return largest


def in_c_order(array: Array, dtype: np.dtype[Any]) -> Array:
    """The same values as a C-contiguous `dtype`. Large volumes are turned one Y plane at a time.

    From Fortran order, 256 x 256 x 100: 27 ms against 33 at once; 512 x 512 x 60: 52 against 97.
    """
    if array.flags.c_contiguous or array.ndim != 4 or array.size < _NUM_LARGE_VALUES:
        return np.asarray(array, dtype=dtype, order="C")
    turned = np.empty(array.shape, dtype=dtype)
    for at in range(array.shape[2]):
        turned[:, :, at] = array[:, :, at]
    return turned


def _sample_volume(volume: Array, axes: Sequence[Positions], dtype: np.dtype[Any]) -> Array:
    """One (X, Y, Z): the two outer axes in memory by sparse products, the inner one turned or gathered."""
    order = memory_order(volume)
    stored = np.ascontiguousarray(volume.transpose(order), dtype=dtype)
    # The axis that shrinks most goes first: whatever follows has less to do.
    for axis in sorted((0, 1), key=lambda axis: axes[order[axis]].num_new / axes[order[axis]].num_old):
        stored = _sample_axis(stored, axis, axes[order[axis]])
    inner = axes[order[2]]
    if inner.is_identity:
        return stored.transpose(np.argsort(order))
    if order[2] == 2:  # already the inner axis of the result
        return _gather_inner(stored, inner).transpose(np.argsort(order))
    turned = in_c_order(stored.transpose(2, 1, 0)[None], stored.dtype)[0]
    return _sample_axis(turned, 0, inner).transpose(np.argsort([order[2], order[1], order[0]]))


def memory_order(array: Array) -> list[int]:
    """Axes from the outermost in memory to the innermost; ties stay as they are."""
    return sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))


def _sample_axis(stored: Array, axis: int, positions: Positions) -> Array:
    """C-contiguous (A, B, C) -> new points along A (axis 0) or B (axis 1)."""
    if positions.is_identity:
        return stored
    num_outer, num_inner = (1, stored[0].size) if axis == 0 else (stored.shape[0], stored.shape[2])
    make = _kept_weights if num_outer * positions.num_new <= _NUM_KEPT_ROWS else _weights
    key = (positions.num_old, positions.num_new, positions.step, positions.offset)
    weights = make(*key, num_outer, stored.dtype.str)
    found: Array = weights @ stored.reshape(num_outer * positions.num_old, num_inner)
    shape = list(stored.shape)
    shape[axis] = positions.num_new
    return found.reshape(shape)


def _weights(num_old: int, num_new: int, step: float, offset: float, num_outer: int, dtype: str) -> Any:
    """Sparse (outer x new, outer x old): two weights in each row, the same block for each outer index."""
    from scipy.sparse import csr_array

    before, after, weight = Positions(num_old, num_new, step, offset).neighbours()
    block = np.stack([before, after], axis=1).ravel()
    index_type = np.int32 if num_outer * max(num_old, 2 * num_new) < 2**31 else np.int64
    indices = (np.arange(num_outer, dtype=index_type)[:, None] * num_old + block.astype(index_type)).ravel()
    data = np.tile(np.stack([1.0 - weight, weight], axis=1).ravel().astype(dtype), num_outer)
    starts = np.arange(0, len(data) + 1, 2, dtype=index_type)
    return csr_array((data, indices, starts), shape=(num_outer * num_new, num_outer * num_old))


# Building small ones takes as long (0.03 ms) as multiplying with them. Larger ones are not worth their memory.
_kept_weights = lru_cache(maxsize=64)(_weights)


def _gather_inner(stored: Array, positions: Positions) -> Array:
    """C-contiguous (A, B, C) -> new points along C, in blocks of rows that stay in the cache."""
    before, after, weight = positions.neighbours()
    weight = weight.astype(stored.dtype)
    rows = stored.reshape(-1, positions.num_old)
    found = np.empty((len(rows), positions.num_new), dtype=stored.dtype)
    num_rows = max(1, _NUM_BLOCK_VALUES // positions.num_new)
    for start in range(0, len(rows), num_rows):
        block, out = rows[start : start + num_rows], found[start : start + num_rows]
        low = block.take(before, axis=1)
        block.take(after, axis=1, out=out, mode="clip")
        out -= low
        out *= weight
        out += low
    return found.reshape((*stored.shape[:2], positions.num_new))
