"""Mean and deviation of rows, and straight curves by them, compiled by Numba: NumPy arrays in, `out` filled."""

from __future__ import annotations

from typing import Any

import numpy as np

from flatout.compiled import compiled
from flatout.types import Array


def _moments_of(row: Array) -> Any:
    """Mean and deviation; sums in float64, because those of float32 lose digits over many values."""
    total = 0.0
    for at in range(row.size):
        total += row[at]
    mean = total / row.size
    squares = 0.0
    for at in range(row.size):
        centred = row[at] - mean
        squares += centred * centred
    return np.float32(mean), np.float32(np.sqrt(squares / row.size))


# Sums in any order, or the compiler may not use vectors.
_moments = compiled(_moments_of, fastmath={"reassoc", "nsz"})


@compiled
def mean_and_deviation(x: Array, out: Array, first_row: int, last_row: int) -> None:
    """(B, N) float32 in, (2, B) out."""
    for row in range(first_row, last_row):
        out[0, row], out[1, row] = _moments(x[row])


@compiled
def brighten(x: Array, active: Array, share: Array, out: Array, first_row: int, last_row: int) -> None:
    """(B, N): each active sample plus so much of its own deviation; `out` may be `x`."""
    for row in range(first_row, last_row):
        _keep(x[row], out[row])
        if active[row]:
            _straighten(out[row], np.float32(1.0), _moments(x[row])[1] * share[row])


@compiled
def stretch(x: Array, active: Array, factor: Array, out: Array, first_row: int, last_row: int) -> None:
    """(B, N): what each active sample differs from its own mean by, times its factor; `out` may be `x`."""
    for row in range(first_row, last_row):
        _keep(x[row], out[row])
        if active[row]:
            own = factor[row]
            _straighten(out[row], own, _moments(x[row])[0] * (np.float32(1.0) - own))


@compiled
def _keep(row: Array, out: Array) -> None:
    if row.ctypes.data != out.ctypes.data:
        for at in range(row.size):
            out[at] = row[at]


@compiled
def _straighten(row: Array, factor: Any, shift: Any) -> None:
    """In place: one array cannot overlap with another, so that the compiler uses vectors."""
    for at in range(row.size):
        row[at] = row[at] * factor + shift
