"""How much of a batch is padding, told by the constant tail that its samples end with."""

from __future__ import annotations

from typing import Any

import torch

from flatout.doctor.ceiling_batches import tensors_of

MAX_ELEMENTS = 4_000_000
"""Larger batches are judged by their first samples."""
LEAST_TAIL = 2
"""A constant run of one element is a value like any other."""


def padding_of(batch: Any) -> tuple[float, float] | None:
    """Shares of the longest padded dimension of the largest tensor: all padding, and what no sample needs.

    None: no tensor has a dimension besides that of the batch.
    """
    tensors = [each for each in tensors_of(batch) if each.dim() >= 2 and each.is_cpu and min(each.shape) > 0]
    if not tensors:
        return None
    tensor = max(tensors, key=torch.numel).detach()
    num_judged = max(2, min(len(tensor), MAX_ELEMENTS * len(tensor) // tensor.numel()))
    shares = [_shares(tensor[:num_judged], dim) for dim in range(1, tensor.dim())]
    return max(shares)


def _shares(tensor: torch.Tensor, dim: int) -> tuple[float, float]:
    length = tensor.shape[dim]
    if length <= LEAST_TAIL:
        return 0.0, 0.0
    value = _tail_value(tensor.select(dim, length - 1).flatten(1) if tensor.dim() > 2 else tensor[:, -1:])
    if value is None:
        return 0.0, 0.0
    others = [each for each in range(1, tensor.dim()) if each != dim]
    differs = (tensor != value).any(dim=others) if others else tensor != value
    used = (differs * torch.arange(1, length + 1)).amax(dim=1)
    used = torch.where(length - used < LEAST_TAIL, length, used).double()
    return 1.0 - float(used.mean()) / length, 1.0 - float(used.max()) / length


def _tail_value(tails: torch.Tensor) -> torch.Tensor | None:
    """The value that most samples end with, if at least two do: what they are padded with."""
    ends = tails[(tails == tails[:, :1]).all(dim=1), 0]
    if len(ends) < LEAST_TAIL:
        return None
    values, counts = torch.unique(ends, return_counts=True)
    most = int(counts.argmax())
    return values[most] if int(counts[most]) >= LEAST_TAIL else None
