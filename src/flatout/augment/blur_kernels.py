"""Blur along one axis, compiled by Numba: arrays in, rows of `out` filled; inactive samples are copied."""

from __future__ import annotations

from flatout.compiled import compiled
from flatout.types import Array


@compiled
def blur_last(x: Array, active: Array, weights: Array, out: Array, first_row: int, last_row: int) -> None:
    """(B, R, L) float32 along L; weights (B, radius + 1) from the middle on; a row is one of B x R lines."""
    num_lines, length = x.shape[1:]
    for row in range(first_row, last_row):
        n, r = row // num_lines, row % num_lines
        for j in range(length):
            out[n, r, j] = x[n, r, j] * weights[n, 0] if active[n] else x[n, r, j]
        for step in range(1, weights.shape[1] if active[n] else 1):
            weight = weights[n, step]
            for j in range(min(step, length)):
                out[n, r, j] += (x[n, r, 0] + x[n, r, min(j + step, length - 1)]) * weight
            for j in range(step, length - step):
                out[n, r, j] += (x[n, r, j - step] + x[n, r, j + step]) * weight
            for j in range(max(step, length - step), length):
                out[n, r, j] += (x[n, r, j - step] + x[n, r, length - 1]) * weight


@compiled
def blur_inner(x: Array, active: Array, weights: Array, out: Array, first_row: int, last_row: int) -> None:
    """(B, R, L, W) float32 along L; a row is one of B x R x L lines of W values."""
    num_planes, length, width = x.shape[1:]
    for row in range(first_row, last_row):
        plane, i = row // length, row % length
        n, r = plane // num_planes, plane % num_planes
        for j in range(width):
            out[n, r, i, j] = x[n, r, i, j] * weights[n, 0] if active[n] else x[n, r, i, j]
        for step in range(1, weights.shape[1] if active[n] else 1):
            weight, before, after = weights[n, step], max(i - step, 0), min(i + step, length - 1)
            for j in range(width):
                out[n, r, i, j] += (x[n, r, before, j] + x[n, r, after, j]) * weight
