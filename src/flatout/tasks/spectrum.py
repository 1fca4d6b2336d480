"""LogMel: recordings of different lengths in, how loud each band is over time out, on the device."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

WINDOW_S = 0.025
HOP_S = 0.01
QUIETEST = 1e-6
"""Power that counts as silence: the logarithm of nothing is none. 16-bit recordings have 1e-9 at least."""
RANGE_NATS = 10.0
"""What is quieter than the loudest band by more (43 dB) is raised to that: it is the recorder's noise, by which
speakers differ more than by their voices."""
LEAST_DEVIATION = 1e-3


class LogMel(nn.Module):
    """Logarithmic mel spectrum, each band with mean 0 and deviation 1 over its recording.

    Behind a recording's end stand zeros, whatever batch it is in: its frames are the same in all of them.
    """

    window: Tensor
    bands: Tensor

    def __init__(self, rate: int, num_bands: int) -> None:
        super().__init__()
        self.hop = max(1, round(HOP_S * rate))
        length = max(2, round(WINDOW_S * rate))
        self.num_points = 2 ** math.ceil(math.log2(length))
        self.register_buffer("window", torch.hann_window(length), persistent=False)
        self.register_buffer("bands", mel_bands(rate, self.num_points, num_bands), persistent=False)

    def forward(self, signal: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T) and the lengths (B,) in, (B, bands, F) and the number of frames of each out, in float32."""
        # The powers of loud recordings do not fit half precision.
        with torch.autocast(signal.device.type, enabled=False):
            signal = torch.where(is_inside(lengths, signal.shape[1]), signal.float(), 0.0)
            spectrum = torch.stft(
                signal,
                self.num_points,
                self.hop,
                len(self.window),
                self.window,
                center=True,
                pad_mode="constant",
                return_complex=True,
            )
            power = spectrum.real.square() + spectrum.imag.square()
            loudness = (self.bands @ power).clamp_min(QUIETEST).log()
            loudness = torch.maximum(loudness, loudness.amax((1, 2), keepdim=True) - RANGE_NATS)
            num_frames = lengths // self.hop + 1
            return standardised(loudness, is_inside(num_frames, loudness.shape[2])), num_frames


def standardised(values: Tensor, mask: Tensor) -> Tensor:
    """(B, C, F) with mean 0 and deviation 1 of each row where the mask (B, F) is true, and 0 elsewhere."""
    mask = mask[:, None]
    num = mask.sum(2, keepdim=True).clamp_min(1)
    centred = torch.where(mask, values - torch.where(mask, values, 0.0).sum(2, keepdim=True) / num, 0.0)
    deviation = (centred.square().sum(2, keepdim=True) / num).sqrt()
    return centred / deviation.clamp_min(LEAST_DEVIATION)


def is_inside(lengths: Tensor, width: int) -> Tensor:
    """(B, width) bool: the places before each length."""
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def mel_bands(rate: int, num_points: int, num_bands: int) -> Tensor:
    """(bands, F): triangles of equal width in mel from 0 Hz to half the rate, over the bins of a spectrum.

    Each covers one bin at least: narrow ones at the low end would have none.
    """
    num_bins = num_points // 2 + 1
    mels = torch.linspace(0.0, _mel(rate / 2), num_bands + 2, dtype=torch.float64)
    edges = 700.0 * (10.0 ** (mels / 2595.0) - 1.0) * num_points / rate
    bins = torch.arange(num_bins, dtype=torch.float64)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising = (bins - low) / (centre - low).clamp_min(1.0)
    falling = (high - bins) / (high - centre).clamp_min(1.0)
    triangles = torch.minimum(rising, falling).clamp_min(0.0)
    nearest = (bins - centre.round()).abs() < 0.5
    return torch.where(triangles.sum(1, keepdim=True) > 0, triangles, nearest.double()).float()


def _mel(frequency_hz: float) -> float:
    return 2595.0 * math.log10(1.0 + frequency_hz / 700.0)
