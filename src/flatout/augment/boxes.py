"""Boxes in space, one a sample: drawn by share of each axis, and as a map of the places inside."""

from __future__ import annotations

import torch
from torch import Tensor

from flatout.augment.checks import MILLION, millionths
from flatout.augment.draws import Draws


def drawn_boxes(draws: Draws, column: int, size: tuple[int, ...], max_fraction: float) -> tuple[Tensor, Tensor]:
    """Start and width of a box, (B, n) int64 each, from two columns an axis; no width where not even 1 fits."""
    starts, widths = [], []
    for axis, length in enumerate(size):
        most = length * millionths(max_fraction) // MILLION
        width = draws.whole(column + 2 * axis, max(most, 1)) + min(most, 1)
        starts.append(draws.whole(column + 2 * axis + 1, length - width + 1))
        widths.append(width)
    return torch.stack(starts, dim=1), torch.stack(widths, dim=1)


def inside_boxes(size: tuple[int, ...], start: Tensor, width: Tensor) -> Tensor:
    """(B, *size) bool: which places lie in the box of each sample, given as (B, n) start and width."""
    is_inside = torch.ones((), dtype=torch.bool, device=start.device)
    for axis, length in enumerate(size):
        places = torch.arange(length, device=start.device)
        along = (places >= start[:, axis, None]) & (places < (start + width)[:, axis, None])
        shape = [length if other == axis else 1 for other in range(len(size))]
        is_inside = is_inside & along.view(-1, *shape)
    return is_inside
