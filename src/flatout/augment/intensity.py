"""Brightness, contrast and gamma: one curve for all values of a sample, measured by the sample itself.

So that the same settings do the same to bytes, to numbers from 0 to 1 and to Hounsfield units.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flatout.augment.checks import Range, checked_range
from flatout.augment.draws import Draws
from flatout.augment.image_transform import Intensity, each
from flatout.augment.level import TINY
from flatout.augment.straight import Curve, Straight
from flatout.config.image_augmentation import BrightnessSection, ContrastSection, GammaSection

_BRIGHTNESS = BrightnessSection()
_CONTRAST = ContrastSection()
_GAMMA = GammaSection()

_STRAIGHT_BELOW = 1e-4
"""Of the range: there the gamma curve is a straight line, because a root has no gradient at 0."""


class BrightnessParams(NamedTuple):
    """Parameters of `GPUBrightness`."""

    active: Tensor
    shift: Tensor
    """(B,) float32: what is added, as a share of the sample's own deviation."""


class GPUBrightness(Straight):
    """Add one number to each sample, out of `range` times the sample's own deviation."""

    num_draws = 1

    def __init__(self, range: Range = _BRIGHTNESS.range, p: float = _BRIGHTNESS.p) -> None:
        super().__init__(p)
        self.range = checked_range("range", range)

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> BrightnessParams:
        """Shifts are uniform over `range`."""
        return BrightnessParams(active, draws.uniform(1, *self.range))

    def curve(self, params: BrightnessParams) -> Curve:
        """A shift alone."""
        return Curve(params.active, shift=params.shift)


class ContrastParams(NamedTuple):
    """Parameters of `GPUContrast`."""

    active: Tensor
    factor: Tensor
    """(B,) float32."""


class GPUContrast(Straight):
    """Multiply what each value differs from its sample's mean by one number of `range`."""

    num_draws = 1

    def __init__(self, range: Range = _CONTRAST.range, p: float = _CONTRAST.p) -> None:
        super().__init__(p)
        self.range = checked_range("range", range, above=0.0)

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> ContrastParams:
        """Factors are uniform over `range`."""
        return ContrastParams(active, draws.uniform(1, *self.range))

    def curve(self, params: ContrastParams) -> Curve:
        """A factor alone."""
        return Curve(params.active, factor=params.factor)


class GammaParams(NamedTuple):
    """Parameters of `GPUGamma`."""

    active: Tensor
    gamma: Tensor
    """(B,) float32: above 1 darkens what lies between the smallest and the largest value."""


class GPUGamma(Intensity):
    """Bend each sample between its smallest and its largest value: share s of the way becomes s^gamma."""

    num_draws = 1

    def __init__(self, range: Range = _GAMMA.range, p: float = _GAMMA.p) -> None:
        super().__init__(p)
        self.range = checked_range("range", range, above=0.0)

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> GammaParams:
        """Exponents are uniform over `range`."""
        return GammaParams(active, draws.uniform(1, *self.range))

    def alter(self, x: Tensor, params: GammaParams, may_overwrite: bool = False) -> Tensor:
        """Smallest and largest value stay, and count as constants."""
        low, high = (each(end, x) for end in x.detach().flatten(1).aminmax(dim=1))
        gamma = each(params.gamma, x).to(x.dtype)
        share = (x - low) / (high - low).clamp_min(TINY)
        slope = _STRAIGHT_BELOW ** (gamma - 1.0)
        bent = torch.where(share > _STRAIGHT_BELOW, share.clamp_min(_STRAIGHT_BELOW) ** gamma, share * slope)
        return torch.where(each(params.active, x), bent * (high - low) + low, x)
