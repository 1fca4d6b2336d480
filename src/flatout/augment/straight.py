"""Straight curves: what changes a sample by one product and one sum, and maybe noise, all of its own measure.

However many follow each other, mean and deviation are measured once: what a curve makes of them is known. So
the whole chain is one pass over the values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flatout.augment.draws import normals
from flatout.augment.host import array, host_kernels
from flatout.augment.image_transform import Intensity, can_overwrite, each
from flatout.augment.keys import FIRST_NOISE
from flatout.augment.memory import new_batch
from flatout.augment.moments import moments
from flatout.augment.threads import run_rows


class Curve(NamedTuple):
    """mean + (x - mean) * factor + deviation * (shift + std * noise), for the active samples."""

    active: Tensor
    factor: Tensor | None = None
    """(B,) float32; without it there is a shift or noise alone."""
    shift: Tensor | None = None
    """(B,) float32: a share of the deviation."""
    std: float = 0.0
    """Of the noise; behind it the deviation has to be measured again, so it ends a row of curves."""
    states: Tensor | None = None
    """(B,) int64: what the noise is made from."""


class Straight(Intensity):
    """Changes the values of images by a straight curve."""

    def curve(self, params: Any) -> Curve:
        """What these parameters do."""
        raise NotImplementedError

    def alter(self, x: Tensor, params: Any, may_overwrite: bool = False) -> Tensor:
        """All channels by the same; mean and deviation count as constants."""
        return straightened(x, [self.curve(params)], may_overwrite)


def straightened(x: Tensor, curves: Sequence[Curve], may_overwrite: bool) -> Tensor:
    """A float32 or float64 image seen through curves one after another, of which the last may have noise."""
    chain = _Chain.of(curves, x.device)
    is_free = can_overwrite(x, may_overwrite)
    # Kernels do not check bounds: parameters of another batch go to torch, which says what is wrong. Other
    # layouts do, too: it keeps them.
    is_own = chain.active.shape[1] == len(x) == len(chain.states)
    is_fit = is_own and x.is_contiguous() and x.dtype == torch.float32
    if is_fit and (kernels := host_kernels(x, *chain)) is not None:
        out = x if is_free else new_batch(tuple(x.shape), x.dtype)
        numbers = [array(one) for one in (chain.active.any(0), chain.factors, chain.shifts, chain.std)]
        states = array(chain.states ^ FIRST_NOISE).view(np.uint64)
        run_rows(kernels.straighten, len(x), array(x.flatten(1)), *numbers, states, array(out.flatten(1)))
        return out
    factor, shift, level = chain.of_moments(*moments(x))
    made = x
    if any(curve.factor is not None or curve.shift is not None for curve in curves):
        factors, shifts = each(factor, x), each(shift, x)
        made = x.mul_(factors).add_(shifts) if is_free else torch.addcmul(shifts, x, factors)
    if curves[-1].states is None:
        return made
    return made + normals(chain.states, math.prod(x.shape[1:])).view(x.shape) * each(level, x)


class _Chain(NamedTuple):
    """Curves one after another: (n, B) each, and of the noise (B,); nothing is done to samples not active."""

    active: Tensor
    factors: Tensor
    shifts: Tensor
    std: Tensor
    states: Tensor

    @staticmethod
    def of(curves: Sequence[Curve], device: torch.device) -> _Chain:
        active, last = torch.stack([curve.active for curve in curves]), curves[-1]
        ones, zeros = (
            torch.full((active.shape[1],), number, dtype=torch.float32, device=device) for number in (1.0, 0.0)
        )
        return _Chain(
            active,
            torch.stack([ones if one.factor is None else one.factor for one in curves]).where(active, 1.0),
            torch.stack([zeros if one.shift is None else one.shift for one in curves]).where(active, 0.0),
            last.std * active[-1].to(torch.float32),
            zeros.to(torch.int64) if last.states is None else last.states,
        )

    def of_moments(self, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What each sample is multiplied by, what is added to it, and the level of its noise, (B,) each."""
        dtype = mean.dtype
        factor, shift = torch.ones_like(mean), torch.zeros_like(mean)
        for is_on, own, share in zip(self.active, self.factors.to(dtype), self.shifts.to(dtype), strict=True):
            added = torch.where(is_on, deviation * own * share, 0.0)
            moved = torch.where(is_on, mean * (1.0 - own), 0.0)  # samples that stay may be no numbers
            factor, shift = factor * own, shift * own + moved + added
            mean, deviation = mean + added, deviation * own
        return factor, shift, torch.where(self.active[-1], deviation * self.std.to(dtype), 0.0)
