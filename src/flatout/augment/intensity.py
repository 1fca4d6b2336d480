"""Brightness, contrast and gamma: one curve for all values of a sample, measured by the sample itself.

So that the same settings do the same to bytes, to numbers from 0 to 1 and to Hounsfield units.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flatout.augment.checks import Range, checked_range
from flatout.augment.draws import Draws
from flatout.augment.host import array, host_kernels
from flatout.augment.image_transform import Intensity, can_overwrite, each
from flatout.augment.level import TINY
from flatout.augment.memory import new_batch
from flatout.augment.moments import moments
from flatout.augment.threads import run_rows
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


class GPUBrightness(Intensity):
    """Add one number to each sample, out of `range` times the sample's own deviation."""

    num_draws = 1

    def __init__(self, range: Range = _BRIGHTNESS.range, p: float = _BRIGHTNESS.p) -> None:
        super().__init__(p)
        self.range = checked_range("range", range)

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> BrightnessParams:
        """Shifts are uniform over `range`."""
        return BrightnessParams(active, draws.uniform(1, *self.range))

    def alter(self, x: Tensor, params: BrightnessParams, may_overwrite: bool = False) -> Tensor:
        """All channels by the same."""
        if _suits_kernels(x, params.active, params.shift):
            return _by_kernel("brighten", x, params.active, params.shift, may_overwrite)
        shift = torch.where(params.active, moments(x)[1] * params.shift, 0.0).to(x.dtype)
        return x.add_(each(shift, x)) if can_overwrite(x, may_overwrite) else x + each(shift, x)


class ContrastParams(NamedTuple):
    """Parameters of `GPUContrast`."""

    active: Tensor
    factor: Tensor
    """(B,) float32."""


class GPUContrast(Intensity):
    """Multiply what each value differs from its sample's mean by one number of `range`."""

    num_draws = 1

    def __init__(self, range: Range = _CONTRAST.range, p: float = _CONTRAST.p) -> None:
        super().__init__(p)
        self.range = checked_range("range", range, above=0.0)

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> ContrastParams:
        """Factors are uniform over `range`."""
        return ContrastParams(active, draws.uniform(1, *self.range))

    def alter(self, x: Tensor, params: ContrastParams, may_overwrite: bool = False) -> Tensor:
        """As one product and one sum; the mean counts as a constant."""
        if _suits_kernels(x, params.active, params.factor):
            return _by_kernel("stretch", x, params.active, params.factor, may_overwrite)
        factor = torch.where(params.active, params.factor, 1.0).to(x.dtype)
        shift = torch.where(params.active, moments(x)[0] * (1.0 - factor), 0.0).to(x.dtype)
        product = x.mul_(each(factor, x)) if can_overwrite(x, may_overwrite) else x * each(factor, x)
        return product.add_(each(shift, x))


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


def _suits_kernels(x: Tensor, *params: Tensor) -> bool:
    """Kernels do not check bounds: parameters of another batch go to torch, which says what is wrong.
    Other layouts do, too: it keeps them."""
    is_own = all(len(each) == len(x) for each in params)
    return is_own and x.is_contiguous() and x.dtype == torch.float32 and host_kernels(x, *params) is not None


def _by_kernel(name: str, x: Tensor, active: Tensor, amount: Tensor, may_overwrite: bool) -> Tensor:
    """The same, each sample while it is in the cache, by our own threads: torch's get in the way of these."""
    from flatout.augment import moment_kernels

    out = x if can_overwrite(x, may_overwrite) else new_batch(tuple(x.shape), x.dtype)
    arrays = array(x.flatten(1)), array(active), array(amount), array(out.flatten(1))
    run_rows(getattr(moment_kernels, name), len(x), *arrays)
    return out
