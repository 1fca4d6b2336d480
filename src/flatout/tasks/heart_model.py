"""The network of heart sounds: an encoder for cycles and their parts, heads for pre-training and labels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

WIDTH = 64
NUM_LAYERS = 3
EMBEDDING = 64
"""Numbers that two views are compared by."""
WINDOW_S, HOP_S = 0.0256, 0.0064
HIGHEST_HZ = 1000.0
"""Heart sounds and murmurs lie below."""
_FLOOR = 0.01
"""Added to magnitudes before the logarithm: what is below counts as silence. Recordings have deviation 1."""
_KERNEL = 5
_GROUP = 8
"""Channels that are normalised together. Not by the batch: a sample's numbers must not depend on the others."""


class Encoder(nn.Module):
    """(B, C, T) of any length in, (B, `num_features`) out: a spectrum over time, then convolutions along it.

    The spectrum is worth it: on 550 recordings divided by near duplicates, four layers of strided convolutions
    over the waveform reach a balanced accuracy of 0.43, this one 0.86, in the same time.
    """

    def __init__(
        self, num_channels: int = 1, rate: int = 5000, width: int = WIDTH, num_layers: int = NUM_LAYERS
    ) -> None:
        super().__init__()
        self.num_values = max(16, round(rate * WINDOW_S))
        self.hop = max(1, round(rate * HOP_S))
        self.num_bins = min(self.num_values // 2, int(HIGHEST_HZ * self.num_values / rate)) + 1
        self.window: Tensor
        self.register_buffer("window", torch.hann_window(self.num_values), persistent=False)
        layers: list[nn.Module] = []
        num_in = num_channels * self.num_bins
        for level in range(num_layers):
            layers += [
                nn.Conv1d(num_in, width, _KERNEL, stride=1 if level == 0 else 2, padding=_KERNEL // 2),
                nn.GroupNorm(_num_groups(width), width),
                nn.ReLU(inplace=True),
            ]
            num_in = width
        self.layers = nn.Sequential(*layers)
        self.num_features = 2 * width

    def forward(self, x: Tensor) -> Tensor:
        """Mean and maximum over time: how much of something there is, and whether it is there at all."""
        x = self.layers(self.spectrum(x))
        return torch.cat([x.mean(-1), x.amax(-1)], dim=1)

    def spectrum(self, x: Tensor) -> Tensor:
        """(B, C, T) in, the logarithm of its spectrum out: (B, C x bins, steps), of mean 0 and deviation 1."""
        spectrum = torch.stft(
            x.float().flatten(0, 1),
            self.num_values,
            self.hop,
            window=self.window.float(),
            pad_mode="constant",
            return_complex=True,
        )
        loudness = torch.log(spectrum[:, : self.num_bins].abs() + _FLOOR)
        loudness = loudness.reshape(x.shape[0], -1, loudness.shape[-1])
        deviation, mean = torch.std_mean(loudness, dim=(1, 2), keepdim=True)
        return ((loudness - mean) / (deviation + _FLOOR)).to(x.dtype)


class Embedded(NamedTuple):
    """Embeddings of both levels: cycles (B, D), parts (B, S, D)."""

    cycle1: Tensor
    cycle2: Tensor
    parts1: Tensor
    parts2: Tensor


class ContrastModel(nn.Module):
    """Two views and their parts in, what they are compared by out."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.cycle_head = _projection(encoder.num_features)
        self.part_head = _projection(encoder.num_features)

    def forward(self, view1: Tensor, view2: Tensor, subs1: Tensor, subs2: Tensor) -> Embedded:
        """Views (B, C, T), parts (B, S, C, L)."""
        num, num_parts = subs1.shape[:2]
        cycles = self.cycle_head(self.encoder(torch.cat([view1, view2])))
        parts = self.part_head(self.encoder(torch.cat([subs1, subs2]).flatten(0, 1)))
        parts1, parts2 = parts.view(2, num, num_parts, -1).unbind()
        cycle1, cycle2 = cycles.chunk(2)
        return Embedded(cycle1, cycle2, parts1, parts2)


class LabelModel(nn.Module):
    """A cycle in, a number for each class out.

    Args:
        freezes_encoder: train the last layer alone: what that reaches, the features hold already.
        dropout: share of the features dropped in training.
    """

    def __init__(
        self, encoder: Encoder, num_classes: int, *, freezes_encoder: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.norm = nn.LayerNorm(encoder.num_features, elementwise_affine=False)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(encoder.num_features, num_classes)
        encoder.requires_grad_(not freezes_encoder)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) in, (B, classes) out."""
        logits: Tensor = self.classifier(self.dropout(self.norm(self.encoder(x))))
        return logits


def _num_groups(width: int) -> int:
    """The largest number of equal groups of at least `_GROUP` channels."""
    return next(num for num in range(max(1, width // _GROUP), 0, -1) if width % num == 0)


def _projection(num_features: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(num_features, num_features), nn.ReLU(inplace=True), nn.Linear(num_features, EMBEDDING)
    )
