"""The chain as the heart sound guide had it: sample after sample, FFT resampling, `butter` and `filtfilt`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import scipy.signal

from flatout.config.augmentation import AugmentationSection
from flatout.types import Array

_DEFAULTS = AugmentationSection()
_ORDER = 4
_EDGE = 1e-3
"""Share of half the sample rate that a band keeps from both ends: `butter` takes neither 0 nor 1."""

Random = np.random.Generator


def time_stretch(sample: Array, random: Random) -> Array:
    """Resampled to another length, then cut or filled with zeros."""
    length = sample.shape[-1]
    stretched = scipy.signal.resample(
        sample, max(1, int(length * random.uniform(*_DEFAULTS.time_stretch.range))), axis=-1
    )
    kept: Array = stretched[..., :length]
    return np.pad(kept, ((0, 0), (0, length - kept.shape[-1])))


def time_shift(sample: Array, random: Random) -> Array:
    """Circular."""
    most = int(sample.shape[-1] * _DEFAULTS.time_shift.max_fraction)
    return np.roll(sample, random.integers(-most, most, endpoint=True), axis=-1)


def frequency_mask(sample: Array, random: Random) -> Array:
    """A band-stop run forwards and backwards."""
    width = max(_EDGE, random.uniform(0.0, _DEFAULTS.frequency_mask.max_fraction))
    low = random.uniform(_EDGE, 1.0 - _EDGE - width)
    b, a = scipy.signal.butter(_ORDER, [low, low + width], btype="bandstop")
    filtered: Array = scipy.signal.filtfilt(b, a, sample, axis=-1)
    return filtered


def amplitude_scale(sample: Array, random: Random) -> Array:
    """One factor."""
    return sample * random.uniform(*_DEFAULTS.amplitude_scale.range)


def gaussian_noise(sample: Array, random: Random) -> Array:
    """Measured by the sample's own deviation."""
    level: float = sample.std() * _DEFAULTS.gaussian_noise.std
    return sample + random.standard_normal(sample.shape) * level


def time_mask(sample: Array, random: Random) -> Array:
    """A stretch set to zero."""
    length = sample.shape[-1]
    width = int(random.integers(1, max(1, int(length * _DEFAULTS.time_mask.max_fraction)), endpoint=True))
    start = int(random.integers(0, length - width, endpoint=True))
    masked = sample.copy()
    masked[..., start : start + width] = 0.0
    return masked


SCIPY: Sequence[Callable[[Array, Random], Array]] = (
    time_stretch,
    time_shift,
    frequency_mask,
    amplitude_scale,
    gaussian_noise,
    time_mask,
)


def run_each(batch: Array, random: Random) -> Array:
    """(B, C, T) float32 in and out, one sample after another."""
    out = np.empty_like(batch)
    for number, sample in enumerate(batch):
        for change in SCIPY:
            sample = change(sample, random)
        out[number] = sample
    return out
