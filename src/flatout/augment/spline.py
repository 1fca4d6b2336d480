"""Smooth fields from few numbers: uniform cubic B-splines over a grid of control points."""

from __future__ import annotations

import torch
from torch import Tensor

from flatout.augment.host import array, host_kernels
from flatout.augment.memory import new_batch
from flatout.augment.threads import run_rows

MARGIN = 3
"""Control points beyond the number of cells: a cubic spline is made of four neighbours."""


def spline_field(points: Tensor, size: tuple[int, ...]) -> Tensor:
    """(B, n, g, ...) control points, cells + 3 along each axis of space, in; (B, n, *size) values out."""
    field = points
    for axis, length in enumerate(size):
        field = _along(field, 2 + axis, length)
    return field


def _along(field: Tensor, axis: int, length: int) -> Tensor:
    """One axis from control points to `length` values, whose first and last lie half a value inside."""
    num_cells = field.shape[axis] - MARGIN
    place = (torch.arange(length, device=field.device) + 0.5) * (num_cells / length)
    cell = place.floor().clamp_max(num_cells - 1)
    weights, first = _weights(place - cell), cell.to(torch.int64)
    if axis == field.dim() - 1 and host_kernels(field) is not None:
        return _by_kernel(field, first, weights)
    shape = [-1 if other == axis else 1 for other in range(field.dim())]
    # Four products instead of one of matrices, which autocast would round to bfloat16.
    made = field.index_select(axis, first) * weights[0].view(shape)
    for tap in range(1, MARGIN + 1):
        made = made + field.index_select(axis, first + tap) * weights[tap].view(shape)
    return made


def _weights(share: Tensor) -> Tensor:
    """(4, n) weights of the control points around places that lie `share` into their cells; they sum to 1."""
    rest = 1.0 - share
    return torch.stack(
        [
            rest * rest * rest / 6.0,
            (3.0 * share - 6.0) * share * share / 6.0 + 2.0 / 3.0,
            (3.0 * rest - 6.0) * rest * rest / 6.0 + 2.0 / 3.0,
            share * share * share / 6.0,
        ]
    )


def _by_kernel(field: Tensor, first: Tensor, weights: Tensor) -> Tensor:
    """The last axis, where all the values are: 8 times as fast as with torch, which makes ten such fields."""
    from flatout.augment.spline_kernels import four_taps

    made = new_batch((*field.shape[:-1], len(first)), field.dtype)
    rows = made.flatten(0, -2)
    run_rows(four_taps, len(rows), array(field.flatten(0, -2)), array(first), array(weights), array(rows))
    return made
