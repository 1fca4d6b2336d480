"""Added noise, white or coloured, as a share of each sample's own deviation."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from flatout.augment.checks import Range, checked_range
from flatout.augment.draws import Draws, normals
from flatout.augment.host import array
from flatout.augment.keys import FIRST_NOISE
from flatout.augment.level import TINY, deviation, root_mean_square
from flatout.augment.looped import LoopedTransform
from flatout.augment.transform import Transform
from flatout.config.augmentation import ColouredNoiseSection, GaussianNoiseSection
from flatout.errors import AugmentError

_WHITE = GaussianNoiseSection()
_COLOURED = ColouredNoiseSection()


class NoiseParams(NamedTuple):
    """Parameters of `GPUGaussianNoise`."""

    active: Tensor
    states: Tensor
    """(B,) int64: what the noise is made from; 8 bytes instead of the noise itself."""


class GPUGaussianNoise(LoopedTransform):
    """Add white noise whose deviation is `std` times the sample's own."""

    def __init__(self, std: float = _WHITE.std, p: float = _WHITE.p) -> None:
        super().__init__(p)
        self.std = checked_std(std)

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> NoiseParams:
        """The noise of a sample follows from its key."""
        return NoiseParams(active, draws.keys.states)

    def alter(self, x: Tensor, params: NoiseParams) -> Tensor:
        """Every channel has its own noise, all at one level."""
        noise = normals(params.states, x.shape[1] * x.shape[2]).view(x.shape)
        return x + noise * (deviation(x) * self.std)

    def loop(self, kernels: ModuleType, x: Tensor, params: NoiseParams) -> Tensor:
        """Level, noise and sum of one sample after another, while it is in the cache."""
        out = torch.empty_like(x)
        states = array(params.states ^ FIRST_NOISE).view(np.uint64)
        rows = array(x.flatten(1)), array(params.active)
        kernels.add_noise(*rows, states, np.float32(self.std), array(out.flatten(1)))
        return out


class ColouredNoiseParams(NamedTuple):
    """Parameters of `GPUColouredNoise`."""

    active: Tensor
    exponent: Tensor
    """(B,) float32: the power falls as 1 / f^exponent."""
    states: Tensor
    """(B,) int64: what the noise is made from."""


class GPUColouredNoise(Transform):
    """Add noise whose power falls as 1 / f^exponent: 0 is white, 1 pink, 2 brown, -1 blue; none at 0 Hz."""

    num_draws = 1

    def __init__(
        self, std: float = _COLOURED.std, exponent: Range = _COLOURED.exponent, p: float = _COLOURED.p
    ) -> None:
        super().__init__(p)
        self.std = checked_std(std)
        self.exponent = checked_range("exponent", exponent)

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> ColouredNoiseParams:
        """Exponents are uniform over their range."""
        return ColouredNoiseParams(active, draws.uniform(1, *self.exponent), draws.keys.states)

    def alter(self, x: Tensor, params: ColouredNoiseParams) -> Tensor:
        """A random spectrum with that slope, in time, scaled to exactly `std` times the sample's deviation."""
        num_samples, num_channels, length = x.shape
        num_bins = length // 2 + 1
        parts = normals(params.states, num_channels * 2 * num_bins).view(num_samples, num_channels, 2, num_bins)
        spectrum = torch.complex(parts[:, :, 0], parts[:, :, 1]) * self._gain(num_bins, params)[:, None, :]
        noise: Tensor = torch.fft.irfft(spectrum, n=length)
        return x + noise * (deviation(x) * self.std / root_mean_square(noise).clamp_min(TINY))

    def _gain(self, num_bins: int, params: ColouredNoiseParams) -> Tensor:
        """(B, F): the root of the power; nothing at 0 Hz, where the law has no value."""
        bins = torch.arange(num_bins, device=params.exponent.device)
        return bins.clamp_min(1) ** (-0.5 * params.exponent[:, None]) * (bins > 0)


def checked_std(std: float) -> float:
    """A deviation of noise.

    Raises:
        AugmentError: it is below 0, or no number.
    """
    if not 0.0 <= std < float("inf"):
        raise AugmentError(f"std: got {std!r}, wanted 0 or more: a share of the sample's own deviation")
    return float(std)
