"""Baseline wander: the slow drift that breathing puts under an ECG, a moving microphone under heart sounds."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from flatout.augment.checks import Range, checked_least, checked_range
from flatout.augment.draws import Draws
from flatout.augment.filters import DEFAULT_SAMPLE_RATE
from flatout.augment.level import deviation
from flatout.augment.transform import Transform
from flatout.config.augmentation import BaselineWanderSection

_WANDER = BaselineWanderSection()


class WanderParams(NamedTuple):
    """Parameters of `GPUBaselineWander`."""

    active: Tensor
    amplitude: Tensor
    """(B,) float32: peak of the drift / deviation of the sample, where all waves meet."""
    frequency_hz: Tensor
    """(B, num_waves) float32."""
    phase: Tensor
    """(B, num_waves) float32: turns, from 0 to 1."""


class GPUBaselineWander(Transform):
    """Add the mean of `num_waves` slow sines, up to `amplitude` times the sample's deviation."""

    def __init__(
        self,
        amplitude: Range = _WANDER.amplitude,
        frequency_hz: Range = _WANDER.frequency_hz,
        num_waves: int = _WANDER.num_waves,
        p: float = _WANDER.p,
        sample_rate: int = DEFAULT_SAMPLE_RATE,
    ) -> None:
        super().__init__(p)
        self.amplitude = checked_range("amplitude", amplitude, above=0.0)
        self.frequency_hz = checked_range("frequency_hz", frequency_hz, above=0.0)
        self.num_waves = checked_least("num_waves", num_waves, 1)
        self.sample_rate = checked_least("sample_rate", sample_rate, 1)
        self.num_draws = 1 + 2 * num_waves

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> WanderParams:
        """Amplitude, frequencies and phases are uniform."""
        middle = 2 + self.num_waves
        return WanderParams(
            active,
            draws.uniform(1, *self.amplitude),
            draws.uniform(slice(2, middle), *self.frequency_hz),
            draws.uniform(slice(middle, middle + self.num_waves)),
        )

    def alter(self, x: Tensor, params: WanderParams) -> Tensor:
        """The drift starts anew with each sample: it knows nothing of its neighbours."""
        seconds = torch.arange(x.shape[-1], device=x.device) / self.sample_rate
        turns = params.frequency_hz[:, :, None] * seconds + params.phase[:, :, None]
        wave = torch.sin(turns * (2.0 * math.pi)).mean(dim=1, keepdim=True)
        return x + wave * (deviation(x) * params.amplitude[:, None, None])
