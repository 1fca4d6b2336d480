"""The augmentation that heart sounds started from: one sample after another, by SciPy.

FFT resampling, Butterworth filters run forwards and backwards. It is the standard path's, kept as it was, and
the view bank's, which makes it beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

from flatout.config.augmentation import (
    AmplitudeScaleSection,
    AugmentationSection,
    BandPassSection,
    FrequencyMaskSection,
    GaussianNoiseSection,
    HighPassSection,
    LowPassSection,
    TimeMaskSection,
    TimeShiftSection,
    TimeStretchSection,
)
from flatout.config.section import TransformSection
from flatout.errors import ConfigError
from flatout.types import Array

STOP_ORDER = 4
LOWEST_STOP = 0.02
"""Lowest edge of a removed band, as a share of half the sample rate: as one polynomial the filter is not stable
below."""
NARROWEST_STOP = 0.01


class Random(Protocol):
    """What is drawn from: a NumPy generator, or `numpy.random` itself, which torch seeds for each worker."""

    def uniform(self, low: float = ..., high: float = ...) -> Any: ...

    def standard_normal(self, size: Any = ...) -> Any: ...


Change = Callable[[Array, Any, Random], Array]


def time_stretch(x: Array, settings: TimeStretchSection, rng: Random) -> Array:
    """Resampled to another length by FFT, then cut or filled with zeros."""
    from scipy.signal import resample

    length = x.shape[-1]
    stretched = resample(x, max(1, round(length * rng.uniform(*settings.range))), axis=-1)[..., :length]
    return np.pad(stretched, ((0, 0), (0, length - stretched.shape[-1])))


def time_shift(x: Array, settings: TimeShiftSection, rng: Random) -> Array:
    """Rolled along time."""
    most = int(x.shape[-1] * settings.max_fraction)
    return np.roll(x, round(rng.uniform(-most, most)), axis=-1)


def frequency_mask(x: Array, settings: FrequencyMaskSection, rng: Random) -> Array:
    """A band-stop filter of random place and width."""
    width = max(NARROWEST_STOP, rng.uniform(0.0, settings.max_fraction))
    low = rng.uniform(LOWEST_STOP, max(LOWEST_STOP, 1.0 - NARROWEST_STOP - width))
    return _filtered(x, STOP_ORDER, [low, min(low + width, 1.0 - NARROWEST_STOP / 2)], "bandstop")


def amplitude_scale(x: Array, settings: AmplitudeScaleSection, rng: Random) -> Array:
    """Multiplied by one number."""
    scaled: Array = x * rng.uniform(*settings.range)
    return scaled


def gaussian_noise(x: Array, settings: GaussianNoiseSection, rng: Random) -> Array:
    """White noise, as a share of the sample's own deviation."""
    noisy: Array = x + rng.standard_normal(x.shape) * (settings.std * float(x.std()))
    return noisy


def time_mask(x: Array, settings: TimeMaskSection, rng: Random) -> Array:
    """Stretches set to zero."""
    length, masked = x.shape[-1], x.copy()
    for _ in range(settings.num_masks):
        width = int(rng.uniform(0.0, settings.max_fraction) * length)
        start = int(rng.uniform(0.0, length - width))
        masked[..., start : start + width] = 0.0
    return masked


def polarity_inversion(x: Array, settings: TransformSection, rng: Random) -> Array:
    """Upside down."""
    return -x


def low_pass(x: Array, settings: LowPassSection, rng: Random, half_rate: float) -> Array:
    """High frequencies weakened."""
    return _filtered(x, settings.order, rng.uniform(*settings.cutoff_hz) / half_rate, "lowpass")


def high_pass(x: Array, settings: HighPassSection, rng: Random, half_rate: float) -> Array:
    """Low frequencies weakened."""
    return _filtered(x, settings.order, rng.uniform(*settings.cutoff_hz) / half_rate, "highpass")


def band_pass(x: Array, settings: BandPassSection, rng: Random, half_rate: float) -> Array:
    """Both ends weakened."""
    band = [rng.uniform(*settings.low_hz) / half_rate, rng.uniform(*settings.high_hz) / half_rate]
    return _filtered(x, settings.order, band, "bandpass")


CHANGES: dict[str, Change] = {
    "time_stretch": time_stretch,
    "time_shift": time_shift,
    "frequency_mask": frequency_mask,
    "amplitude_scale": amplitude_scale,
    "polarity_inversion": polarity_inversion,
    "gaussian_noise": gaussian_noise,
    "time_mask": time_mask,
}
FILTERS: dict[str, Callable[[Array, Any, Random, float], Array]] = {
    "low_pass": low_pass,
    "high_pass": high_pass,
    "band_pass": band_pass,
}
"""Those whose settings are in Hz."""


class ScipyChain:
    """(C, T) in, the same shape out: each transform that the section names, with its probability, in the order
    of the device's chain.

    Args:
        sample_rate: of the signals, for settings in Hz.
        order: keys of the section in the order they run.

    Raises:
        ConfigError: the section asks for a transform that only the device has.
    """

    def __init__(self, section: AugmentationSection, sample_rate: int, order: tuple[str, ...]) -> None:
        self.section, self.sample_rate, self.order = section, sample_rate, order
        wanted = [name for name in order if getattr(section, name) is not None]
        if strange := [name for name in wanted if name not in CHANGES and name not in FILTERS]:
            raise ConfigError(
                f"augmentation.{strange[0]} has no counterpart in SciPy's chain, which has "
                f"{', '.join([*CHANGES, *FILTERS])}: leave it out, or set use_gpu_augment: true"
            )
        self._steps = [(getattr(section, name), self._change(name)) for name in wanted]

    def __call__(self, x: Array, rng: Random) -> Array:
        """One sample."""
        for settings, change in self._steps:
            if settings.p > 0 and rng.uniform() < settings.p:
                x = change(x, settings, rng)
        return np.ascontiguousarray(x, np.float32)

    def __repr__(self) -> str:
        settings = {name: getattr(self.section, name) for name in self.order}
        told = ", ".join(f"{name}: {value}" for name, value in settings.items() if value is not None)
        return f"ScipyChain({told}, sample_rate={self.sample_rate})"

    def _change(self, name: str) -> Change:
        filters: Any = FILTERS.get(name)
        return CHANGES[name] if filters is None else partial(filters, half_rate=self.sample_rate / 2)


def _filtered(x: Array, order: int, edges: float | list[float], kind: str) -> Array:
    """Butterworth, forwards and backwards, designed anew for each sample."""
    from scipy.signal import butter, filtfilt

    b, a = butter(order, edges, btype=kind)
    filtered: Array = filtfilt(b, a, x, axis=-1)
    return filtered
