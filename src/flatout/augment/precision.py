"""Which dtype a transform works in: half precision and bytes are widened once, and given back as they came."""

from __future__ import annotations

import torch
from torch import Tensor

_NARROW = (torch.float16, torch.bfloat16, torch.uint8)


def widened(x: Tensor) -> Tensor:
    """float32 for half precision and uint8, anything else as it is."""
    return x.to(torch.float32) if x.dtype in _NARROW else x


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x`, which may be overwritten, in the dtype it came in; rounded and cut off at 0 and 255 for uint8."""
    if dtype == torch.uint8 and x.dtype != torch.uint8:
        return x.round_().clamp_(0, 255).to(torch.uint8)
    return x.to(dtype)
