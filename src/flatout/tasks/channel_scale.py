"""ChannelScale: mean and deviation of each channel, gathered from the first batches and then kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LEAST_DEVIATION = 1e-6
"""A channel that varies less is only centred."""


class ChannelScale(nn.Module):
    """Standardises (B, T, C); what it has seen is saved with the weights.

    Until it has seen something it changes nothing.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor
    """Sum of squared differences from the mean."""

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(num_channels))
        self.register_buffer("squares", torch.zeros(num_channels))

    @torch.no_grad()
    def update(self, given: Tensor, is_step: Tensor) -> None:
        """Add what stands at the steps there are: (B, T, C) and (B, T). In place, and no synchronisation.

        Means of two sets are joined, not sums of squares: those cancel where a mean is large.
        """
        mask = is_step[:, :, None]
        values = torch.where(mask, given.to(self.mean.dtype), 0.0)
        num = mask.sum().clamp(min=1)
        mean = values.sum((0, 1)) / num
        squares = torch.where(mask, values - mean, 0.0).square().sum((0, 1))
        apart, total = mean - self.mean, self.count + num
        self.mean += apart * (num / total)
        self.squares += squares + apart.square() * (self.count * num / total)
        self.count.copy_(total)

    def forward(self, given: Tensor) -> Tensor:
        """(x - mean) / deviation, in the dtype of the weights."""
        deviation = (self.squares / self.count.clamp(min=1.0)).sqrt()
        is_known = (self.count > 0) & (deviation > LEAST_DEVIATION)
        scaled: Tensor = (given.to(self.mean.dtype) - self.mean) / torch.where(is_known, deviation, 1.0)
        return scaled
