"""Every transform at a length where it does something, and keys for a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flatout.augment import (
    GPUAmplitudeScale,
    GPUBackgroundMix,
    GPUBandPass,
    GPUBaselineWander,
    GPUColouredNoise,
    GPUFrequencyMask,
    GPUGainEnvelope,
    GPUGaussianNoise,
    GPUHighPass,
    GPULowPass,
    GPUPolarityInversion,
    GPUTimeMask,
    GPUTimeShift,
    GPUTimeStretch,
    SampleKeys,
    draw_keys,
)

LENGTH = 400
RATE = 1000
"""Samples a second: a sample lasts 0.4 s."""


def backgrounds(length: int = 150) -> Tensor:
    return torch.sin(torch.arange(3 * length).reshape(3, 1, length) * 0.7)


CASES: dict[str, Callable[[float], Any]] = {
    "time_shift": lambda p: GPUTimeShift(p=p),
    "time_stretch": lambda p: GPUTimeStretch(p=p),
    "amplitude_scale": lambda p: GPUAmplitudeScale(p=p),
    "polarity_inversion": lambda p: GPUPolarityInversion(p=p),
    "gain_envelope": lambda p: GPUGainEnvelope(p=p),
    "gaussian_noise": lambda p: GPUGaussianNoise(std=0.1, p=p),
    "coloured_noise": lambda p: GPUColouredNoise(std=0.1, exponent=(-1.0, 2.0), p=p),
    "time_mask": lambda p: GPUTimeMask(num_masks=2, p=p),
    "frequency_mask": lambda p: GPUFrequencyMask(max_fraction=0.3, p=p),
    "low_pass": lambda p: GPULowPass(cutoff_hz=(50.0, 200.0), p=p, sample_rate=RATE),
    "high_pass": lambda p: GPUHighPass(cutoff_hz=(20.0, 100.0), p=p, sample_rate=RATE),
    "band_pass": lambda p: GPUBandPass(low_hz=(20.0, 60.0), high_hz=(100.0, 300.0), p=p, sample_rate=RATE),
    "background_mix": lambda p: GPUBackgroundMix(backgrounds(), p=p),
    "baseline_wander": lambda p: GPUBaselineWander(frequency_hz=(1.0, 5.0), p=p, sample_rate=RATE),
}


def signals(num_samples: int, num_channels: int = 2, length: int = LENGTH, seed: int = 0) -> Tensor:
    """Rough, loud and quiet samples, none centred."""
    made = torch.randn(num_samples, num_channels, length, generator=torch.Generator().manual_seed(seed))
    return made * torch.linspace(0.5, 2.0, num_samples)[:, None, None] + 0.3


def batch_keys(num_samples: int, *, seed: int = 7, epoch: int = 0) -> SampleKeys:
    return draw_keys(torch.arange(num_samples) * 1_000_003, seed=seed, epoch=epoch)


def tensors(params: Any) -> list[Tensor]:
    """All tensors of nested parameters, in order."""
    if isinstance(params, Tensor):
        return [params]
    return [tensor for inner in params for tensor in tensors(inner)]
