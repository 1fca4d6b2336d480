"""Low-pass, high-pass and band-pass with a cut-off of its own for each sample, and no delay.

The gain is that of a Butterworth filter run forwards and backwards, as `filtfilt` does: half at the cut-off,
1 / (1 + (f / cutoff)^2n) elsewhere. It multiplies the spectrum of the sample, continued at both ends by its own
odd reflection, so that its end does not leak into its beginning.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flatout.augment.checks import Range, checked_least, checked_range
from flatout.augment.draws import Draws
from flatout.augment.transform import Transform
from flatout.config.augmentation import BandPassSection, HighPassSection, LowPassSection
from flatout.errors import AugmentError

_LOW = LowPassSection()
_HIGH = HighPassSection()
_BAND = BandPassSection()

DEFAULT_SAMPLE_RATE = 5000
"""Samples a second, of heart sounds; the ready-made chains have it from here."""
REFLECTED_PERIODS = 3
"""Periods of the lowest cut-off that a sample is continued by: an order of 4 has faded to 1e-4 by then."""


class CutoffParams(NamedTuple):
    """Parameters of `GPULowPass` and `GPUHighPass`."""

    active: Tensor
    cutoff_hz: Tensor
    """(B,) float32."""


class BandParams(NamedTuple):
    """Parameters of `GPUBandPass`."""

    active: Tensor
    low_hz: Tensor
    """(B,) float32."""
    high_hz: Tensor
    """(B,) float32."""


class SpectrumFilter(Transform):
    """What the three have in common: order, rate, and the way through the spectrum."""

    def __init__(self, order: int, sample_rate: int, p: float, *ranges_hz: Range) -> None:
        super().__init__(p)
        self.order = checked_least("order", order, 1)
        self.sample_rate = checked_least("sample_rate", sample_rate, 1)
        lowest_hz = min(_checked_hz(band, sample_rate)[0] for band in ranges_hz)
        self._most_reflected = math.ceil(REFLECTED_PERIODS * sample_rate / lowest_hz)

    def alter(self, x: Tensor, params: Any) -> Tensor:
        """Continue the sample, filter it, cut it out again."""
        num_reflected = min(self._most_reflected, x.shape[-1] - 1)
        long = _reflected(x, num_reflected)
        length = long.shape[-1]
        frequencies_hz = torch.arange(length // 2 + 1, device=x.device) * (self.sample_rate / length)
        gain = self.gain(frequencies_hz, params)
        filtered: Tensor = torch.fft.irfft(torch.fft.rfft(long) * gain[:, None, :], n=length)
        return filtered[..., num_reflected : num_reflected + x.shape[-1]]

    def gain(self, frequencies_hz: Tensor, params: Any) -> Tensor:
        """(F,) frequencies in, (B, F) factors out."""
        raise NotImplementedError

    def low_gain(self, frequencies_hz: Tensor, cutoff_hz: Tensor) -> Tensor:
        """The gain of the low-pass; one minus it is the high-pass."""
        return 1.0 / (1.0 + (frequencies_hz / cutoff_hz[:, None]) ** (2 * self.order))


class CutoffFilter(SpectrumFilter):
    """A filter with one cut-off out of `cutoff_hz`, whose logarithm is uniform."""

    num_draws = 1

    def __init__(self, cutoff_hz: Range, order: int, p: float, sample_rate: int) -> None:
        super().__init__(order, sample_rate, p, cutoff_hz)
        self.cutoff_hz = cutoff_hz

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> CutoffParams:
        """One cut-off a sample."""
        return CutoffParams(active, _log_uniform(draws, 1, self.cutoff_hz))


class GPULowPass(CutoffFilter):
    """Weaken what lies above a cut-off out of `cutoff_hz`, whose logarithm is uniform."""

    def __init__(
        self,
        cutoff_hz: Range = _LOW.cutoff_hz,
        order: int = _LOW.order,
        p: float = _LOW.p,
        sample_rate: int = DEFAULT_SAMPLE_RATE,
    ) -> None:
        super().__init__(cutoff_hz, order, p, sample_rate)

    def gain(self, frequencies_hz: Tensor, params: CutoffParams) -> Tensor:
        """One at 0 Hz, a half at the cut-off."""
        return self.low_gain(frequencies_hz, params.cutoff_hz)


class GPUHighPass(CutoffFilter):
    """Weaken what lies below a cut-off out of `cutoff_hz`, whose logarithm is uniform."""

    def __init__(
        self,
        cutoff_hz: Range = _HIGH.cutoff_hz,
        order: int = _HIGH.order,
        p: float = _HIGH.p,
        sample_rate: int = DEFAULT_SAMPLE_RATE,
    ) -> None:
        super().__init__(cutoff_hz, order, p, sample_rate)

    def gain(self, frequencies_hz: Tensor, params: CutoffParams) -> Tensor:
        """Nothing at 0 Hz, a half at the cut-off."""
        return 1.0 - self.low_gain(frequencies_hz, params.cutoff_hz)


class GPUBandPass(SpectrumFilter):
    """Keep what lies between a frequency out of `low_hz` and one out of `high_hz`."""

    num_draws = 2

    def __init__(
        self,
        low_hz: Range = _BAND.low_hz,
        high_hz: Range = _BAND.high_hz,
        order: int = _BAND.order,
        p: float = _BAND.p,
        sample_rate: int = DEFAULT_SAMPLE_RATE,
    ) -> None:
        super().__init__(order, sample_rate, p, low_hz, high_hz)
        if low_hz[1] >= high_hz[0]:
            raise AugmentError(f"low_hz: got {low_hz!r} with high_hz {high_hz!r}, wanted all of it below that")
        self.low_hz = low_hz
        self.high_hz = high_hz

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> BandParams:
        """Both ends on their own."""
        return BandParams(active, _log_uniform(draws, 1, self.low_hz), _log_uniform(draws, 2, self.high_hz))

    def gain(self, frequencies_hz: Tensor, params: BandParams) -> Tensor:
        """A high-pass at the low end times a low-pass at the high end."""
        low_end = 1.0 - self.low_gain(frequencies_hz, params.low_hz)
        return low_end * self.low_gain(frequencies_hz, params.high_hz)


def _checked_hz(band: Range, sample_rate: int) -> Range:
    found = checked_range("cut-off in Hz", band, above=0.0)
    if found[1] >= sample_rate / 2:
        raise AugmentError(
            f"cut-off in Hz: got {band!r}, wanted all of it below half of the sample rate, {sample_rate / 2:g}"
        )
    return found


def _log_uniform(draws: Draws, column: int, band: Range) -> Tensor:
    return draws.uniform(column, math.log(band[0]), math.log(band[1])).exp()


def _reflected(x: Tensor, num: int) -> Tensor:
    """`num` more values at both ends: the sample turned about its first and about its last value."""
    before = 2.0 * x[..., :1] - x[..., 1 : num + 1].flip(-1)
    after = 2.0 * x[..., -1:] - x[..., x.shape[-1] - 1 - num : x.shape[-1] - 1].flip(-1)
    return torch.cat([before, x, after], dim=-1)
