"""Convolutions of volumes that the CPU gets wrong in bfloat16, run in float32 there.

Where a volume is shallower than the kernel, as in the deepest stage of many networks, the gradient of the
weights is left-over memory: 10^17, infinite, or the process dies of it. Seen with torch 2.13 on a CPU with
AVX512-BF16, for kernels of 3, 5 and 7, with groups and channels-last too; never in float32, in one or two
dimensions, or forwards. Such layers are small: in float32 they cost next to nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def protect_convolutions(module: nn.Module, precision: str, device: torch.device) -> None:
    """Change the 3-D convolutions of a module in place, where its precision and device call for it."""
    if precision != "bf16-mixed" or device.type != "cpu":
        return
    for part in module.modules():
        if type(part) in _SAFE:
            part.__class__ = _SAFE[type(part)]


class SafeConv3d(nn.Conv3d):
    """A Conv3d that takes volumes shallower than its kernel in float32."""

    def forward(self, input: Tensor) -> Tensor:
        """As of nn.Conv3d."""
        if input.shape[-3] >= self.kernel_size[0]:
            return super().forward(input)
        with torch.autocast("cpu", enabled=False):
            return super().forward(input.float())


class SafeConvTranspose3d(nn.ConvTranspose3d):
    """The same, of ConvTranspose3d."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """As of nn.ConvTranspose3d."""
        if input.shape[-3] >= self.kernel_size[0]:
            return super().forward(input, output_size)
        with torch.autocast("cpu", enabled=False):
            return super().forward(input.float(), output_size)


_SAFE: dict[type[nn.Module], Any] = {nn.Conv3d: SafeConv3d, nn.ConvTranspose3d: SafeConvTranspose3d}
