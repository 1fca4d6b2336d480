"""The last axis of a spline field, compiled by Numba: NumPy arrays in, rows of `out` filled."""

from __future__ import annotations

from flatout.compiled import compiled
from flatout.types import Array


@compiled
def four_taps(points: Array, first: Array, weights: Array, out: Array, first_row: int, last_row: int) -> None:
    """(R, g) in, (R, W) out: value j is that of the four points from `first[j]` on, times their weights."""
    for row in range(first_row, last_row):
        for j in range(out.shape[1]):
            at = first[j]
            value = points[row, at] * weights[0, j]
            value += points[row, at + 1] * weights[1, j]
            value += points[row, at + 2] * weights[2, j]
            out[row, j] = value + points[row, at + 3] * weights[3, j]
