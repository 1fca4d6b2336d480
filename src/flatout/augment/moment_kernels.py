"""Mean and deviation of rows, compiled by Numba: NumPy arrays in, `out` filled."""

from __future__ import annotations

import numpy as np

from flatout.compiled import compiled
from flatout.types import Array


def _mean_and_deviation(x: Array, out: Array, first_row: int, last_row: int) -> None:
    """(B, N) float32 in, (2, B) out; sums in float64, because those of float32 lose digits over many values."""
    for row in range(first_row, last_row):
        total = 0.0
        for at in range(x.shape[1]):
            total += x[row, at]
        mean = total / x.shape[1]
        squares = 0.0
        for at in range(x.shape[1]):
            centred = x[row, at] - mean
            squares += centred * centred
        out[0, row], out[1, row] = mean, np.sqrt(squares / x.shape[1])


# Sums in any order, or the compiler may not use vectors.
mean_and_deviation = compiled(_mean_and_deviation, fastmath={"reassoc", "nsz"})
