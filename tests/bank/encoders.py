"""Encoders of the kinds that users have."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """Deterministic in eval() only."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(48, width)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.linear(x)).mean(1)


def make_encoder() -> Encoder:
    return Encoder(5)


def encode(x: Tensor) -> Tensor:
    return x.amax(-1)


def half(x: Tensor) -> Tensor:
    return x.mean(-1).to(torch.bfloat16)
