"""Where a sample's values go in time: circular shift and stretch at constant length."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from flatout.augment.checks import MILLION, Range, checked_range, checked_share, millionths
from flatout.augment.draws import Draws
from flatout.augment.host import array
from flatout.augment.looped import LoopedTransform
from flatout.augment.transform import Transform
from flatout.config.augmentation import TimeShiftSection, TimeStretchSection

_SHIFT = TimeShiftSection()
_STRETCH = TimeStretchSection()

FRACTION_BITS = 24
"""Positions are whole numbers of 2**-24 values: exact at any length; float32 is off by 0.0002 at 4000."""


class ShiftParams(NamedTuple):
    """Parameters of `GPUTimeShift`."""

    active: Tensor
    shift: Tensor
    """(B,) int64 samples; positive is later."""


class GPUTimeShift(LoopedTransform):
    """Roll each sample along time by up to `max_fraction` of it, either way; what leaves comes back in."""

    num_draws = 1

    def __init__(self, max_fraction: float = _SHIFT.max_fraction, p: float = _SHIFT.p) -> None:
        super().__init__(p)
        self.max_fraction = checked_share("max_fraction", max_fraction)
        self._millionths = millionths(self.max_fraction)

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> ShiftParams:
        """All whole shifts from -most to most are equally likely."""
        most = x.shape[-1] * self._millionths // MILLION
        return ShiftParams(active, draws.whole(1, 2 * most + 1) - most)

    def alter(self, x: Tensor, params: ShiftParams) -> Tensor:
        """Value t comes from (t - shift) modulo T."""
        length = x.shape[-1]
        first = torch.remainder(-params.shift, length)
        source = first[:, None] + torch.arange(length, device=x.device)
        source = source - length * (source >= length)  # half the time of a remainder over all positions
        return x.gather(-1, source[:, None, :].expand_as(x))

    def loop(self, kernels: ModuleType, x: Tensor, params: ShiftParams) -> Tensor:
        """Two copies a channel."""
        out = torch.empty_like(x)
        kernels.roll(array(x), array(params.active), array(params.shift), array(out))
        return out


class StretchParams(NamedTuple):
    """Parameters of `GPUTimeStretch`."""

    active: Tensor
    factor: Tensor
    """(B,) float32: new duration / old duration."""


class GPUTimeStretch(LoopedTransform):
    """Play each sample slower or faster by linear interpolation; the end is cropped, or filled with zeros.

    The first value stays where it is. The tone falls and rises with the tempo, as on a tape.
    """

    num_draws = 1

    def __init__(self, range: Range = _STRETCH.range, p: float = _STRETCH.p) -> None:
        super().__init__(p)
        self.range = checked_range("range", range, above=0.0)

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> StretchParams:
        """Factors are uniform over `range`."""
        return StretchParams(active, draws.uniform(1, *self.range))

    def alter(self, x: Tensor, params: StretchParams) -> Tensor:
        """Value t comes from t / factor, between two neighbours; past the last value there is nothing."""
        length = x.shape[-1]
        place = _step(params)[:, None] * torch.arange(length, device=x.device)
        before = (place >> FRACTION_BITS).clamp_max(length - 1)
        after = (before + 1).clamp_max(length - 1)
        share = (place & ((1 << FRACTION_BITS) - 1)).to(x.dtype) * 2.0**-FRACTION_BITS
        low = x.gather(-1, before[:, None, :].expand_as(x))
        high = x.gather(-1, after[:, None, :].expand_as(x))
        is_past = place > (length - 1) << FRACTION_BITS
        return (low + (high - low) * share[:, None, :]).masked_fill(is_past[:, None, :], 0.0)

    def loop(self, kernels: ModuleType, x: Tensor, params: StretchParams) -> Tensor:
        """The same in one pass."""
        from flatout.augment.stretch_kernels import stretch

        step = array(_step(params))
        if step.min() < 1:  # no factor that can be drawn: torch says what is wrong with it
            return Transform.change(self, x, params)
        out = torch.empty_like(x)
        stretch(array(x), array(params.active), step, array(out))
        return out


def _step(params: StretchParams) -> Tensor:
    """(B,) int64: how far the source moves on from value to value, in units of 2**-24."""
    return (float(1 << FRACTION_BITS) / params.factor).round().to(torch.int64)
