"""What is taken away: stretches of time, a band of frequencies."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from flatout.augment.bands import remove_bands
from flatout.augment.checks import MILLION, checked_least, checked_share, millionths
from flatout.augment.draws import Draws
from flatout.augment.host import array
from flatout.augment.looped import LoopedTransform
from flatout.config.augmentation import FrequencyMaskSection, TimeMaskSection

_TIME = TimeMaskSection()
_FREQUENCY = FrequencyMaskSection()


class TimeMaskParams(NamedTuple):
    """Parameters of `GPUTimeMask`."""

    active: Tensor
    start: Tensor
    """(B, num_masks) int64: first masked value."""
    width: Tensor
    """(B, num_masks) int64: masked values."""


class GPUTimeMask(LoopedTransform):
    """Set `num_masks` stretches of each sample to zero, each up to `max_fraction` of the length."""

    def __init__(
        self, num_masks: int = _TIME.num_masks, max_fraction: float = _TIME.max_fraction, p: float = _TIME.p
    ) -> None:
        super().__init__(p)
        self.num_masks = checked_least("num_masks", num_masks, 0)
        self.max_fraction = checked_share("max_fraction", max_fraction)
        self._millionths = millionths(self.max_fraction)
        self.num_draws = 2 * num_masks

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> TimeMaskParams:
        """Widths from 1 to the longest are equally likely, then all places where such a stretch fits."""
        middle = 1 + self.num_masks
        width = _widths(draws, slice(1, middle), x.shape[-1] * self._millionths // MILLION)
        return TimeMaskParams(
            active, draws.whole(slice(middle, middle + self.num_masks), x.shape[-1] - width + 1), width
        )

    def alter(self, x: Tensor, params: TimeMaskParams) -> Tensor:
        """All channels at the same time; stretches may overlap."""
        is_masked = _inside(x.shape[-1], params.start, params.width, x.device).any(dim=1)
        return x.masked_fill(is_masked[:, None, :], 0.0)

    def loop(self, kernels: ModuleType, x: Tensor, params: TimeMaskParams) -> Tensor:
        """A copy with zeros written into it."""
        out = torch.empty_like(x)
        width = params.width.expand_as(params.start)
        kernels.mask(array(x), array(params.active), array(params.start), array(width), array(out))
        return out


class FrequencyMaskParams(NamedTuple):
    """Parameters of `GPUFrequencyMask`."""

    active: Tensor
    start: Tensor
    """(B, 1) int64: first bin of the real spectrum that is removed."""
    width: Tensor
    """(B, 1) int64: removed bins."""


class GPUFrequencyMask(LoopedTransform):
    """Remove one band of each sample's spectrum, up to `max_fraction` of it wide."""

    num_draws = 2

    def __init__(self, max_fraction: float = _FREQUENCY.max_fraction, p: float = _FREQUENCY.p) -> None:
        super().__init__(p)
        self.max_fraction = checked_share("max_fraction", max_fraction)
        self._millionths = millionths(self.max_fraction)

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> FrequencyMaskParams:
        """Widths from 1 to the widest are equally likely, then all places where such a band fits."""
        num_bins = x.shape[-1] // 2 + 1
        width = _widths(draws, slice(1, 2), num_bins * self._millionths // MILLION)
        return FrequencyMaskParams(active, draws.whole(slice(2, 3), num_bins - width + 1), width)

    def alter(self, x: Tensor, params: FrequencyMaskParams) -> Tensor:
        """The spectrum of the whole sample with these bins zero, back in time."""
        spectrum = torch.fft.rfft(x)
        is_masked = _inside(spectrum.shape[-1], params.start, params.width, x.device)
        masked: Tensor = torch.fft.irfft(spectrum.masked_fill(is_masked, 0.0), n=x.shape[-1])
        return masked

    def loop(self, kernels: ModuleType, x: Tensor, params: FrequencyMaskParams) -> Tensor:
        """Samples that stay in the cache together, shared among threads; inactive ones have no spectrum."""
        out = torch.empty_like(x)
        remove_bands(kernels, *(array(each) for each in (x, *params, out)))
        return out


def _widths(draws: Draws, columns: slice, most: int) -> Tensor:
    """(B, n) from 1 to `most`; 0 where not even one fits, so that nothing is masked."""
    return draws.whole(columns, max(most, 1)) + min(most, 1)


def _inside(length: int, start: Tensor, width: Tensor, device: torch.device) -> Tensor:
    """(B, n) starts and widths in, (B, n, length) out: which places lie inside."""
    places = torch.arange(length, device=device)
    return (places >= start[..., None]) & (places < (start + width)[..., None])
