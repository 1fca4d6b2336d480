"""SpeechNet: a small convolutional network over frames, blind to what stands behind a recording's end."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flatout.tasks.spectrum import is_inside

STRIDE = 2
"""Frames of the spectrum that become one of the network: 20 ms, shorter than any sound of speech."""
KERNEL = 11
"""Frames that a layer sees: 0.2 s."""


class SpeechNet(nn.Module):
    """(B, bands, F) in, (B, outputs, F / 2) out; each frame is normalised alone, so batches do not matter."""

    def __init__(self, num_bands: int, dim: int, num_layers: int, num_outputs: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Conv1d(num_bands, dim, 2 * STRIDE + 1, STRIDE, padding=STRIDE)
        self.layers = nn.ModuleList(Layer(dim, dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(dim)
        self.last = nn.Linear(dim, num_outputs)

    def forward(self, frames: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Frames that are 0 behind their number in, outputs (B, F / 2, outputs) and their numbers out."""
        x = self.first(frames)
        num_left = -(-num_frames // STRIDE)
        mask = is_inside(num_left, x.shape[2])[:, None]
        x = torch.where(mask, x, 0.0)
        for layer in self.layers:
            x = layer(x, mask)
        return self.last(self.norm(x.transpose(1, 2))), num_left


class Layer(nn.Module):
    """Each channel over time, then all channels of each frame, added to what came in."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.over_time = nn.Conv1d(dim, dim, KERNEL, padding=KERNEL // 2, groups=dim)
        self.over_channels = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * dim, dim)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, dim, F) in and out, 0 where the mask is false."""
        change = self.over_channels(self.over_time(x).transpose(1, 2)).transpose(1, 2)
        return torch.where(mask, x + change, 0.0)
