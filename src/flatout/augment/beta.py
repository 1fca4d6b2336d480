"""Quantiles of the symmetric beta distribution, as a table to look uniform numbers up in."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_NUM_CELLS = 8192
_NUM_STEPS = 1 << 17


def beta_quantiles(alpha: float) -> Tensor:
    """(8193,) float32: the quantiles of Beta(alpha, alpha) at equal distances from 0 to 1."""
    # The lower half; below alpha = 1 in u = x^alpha, of which the density has no pole at 0.
    power = min(alpha, 1.0)
    u = np.linspace(0.0, 0.5**power, _NUM_STEPS + 1)
    x = u ** (1.0 / power)
    density = x ** (alpha - power) * (1.0 - x) ** (alpha - 1.0)
    mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    wanted = np.linspace(0.0, 1.0, _NUM_CELLS // 2 + 1)
    lower = np.interp(wanted, mass / mass[-1], u) ** (1.0 / power)
    lower[-1] = 0.5
    return torch.from_numpy(np.concatenate([lower, 1.0 - lower[-2::-1]])).to(torch.float32)


def looked_up(table: Tensor, share: Tensor) -> Tensor:
    """Uniform numbers from 0 to 1 in, what the table has there out, straight between its entries."""
    place = share * (len(table) - 1)
    cell = place.floor().clamp_max(len(table) - 2)
    low, high = table[cell.to(torch.int64)], table[cell.to(torch.int64) + 1]
    return low + (high - low) * (place - cell)
