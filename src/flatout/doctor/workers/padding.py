"""How much of a batch is padding, told by the constant tail that its samples end with."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from flatout.doctor.ceiling.batches import tensors_of

MAX_ELEMENTS = 4_000_000
"""Larger batches are judged by their first samples."""
LEAST_TAIL = 2
"""A constant run of one element is a value like any other."""


class Padded(NamedTuple):
    """The most padded dimension of a batch: its length, and what of it the samples use."""

    length: int
    longest: int
    mean: float

    @property
    def padding_share(self) -> float:
        """All padding."""
        return 1.0 - self.mean / self.length

    @property
    def trim_share(self) -> float:
        """What no sample needs."""
        return 1.0 - self.longest / self.length


def padding_of(batch: Any) -> tuple[float, float] | None:
    """Shares of the most padded dimension of the largest tensor: all padding, and what no sample needs.

    None: no tensor has a dimension besides that of the batch.
    """
    found = padded_of(batch)
    return None if found is None else (found.padding_share, found.trim_share)


def padded_of(batch: Any) -> Padded | None:
    """The same as lengths."""
    tensors = [each for each in tensors_of(batch) if each.dim() >= 2 and each.is_cpu and min(each.shape) > 0]
    if not tensors:
        return None
    tensor = max(tensors, key=torch.numel).detach()
    num_judged = max(2, min(len(tensor), MAX_ELEMENTS * len(tensor) // tensor.numel()))
    found = [_used(tensor[:num_judged], dim) for dim in range(1, tensor.dim())]
    return max(found, key=lambda each: (each.padding_share, each.trim_share))


def _used(tensor: torch.Tensor, dim: int) -> Padded:
    length = tensor.shape[dim]
    unpadded = Padded(length, length, float(length))
    if length <= LEAST_TAIL:
        return unpadded
    value = _tail_value(tensor.select(dim, length - 1).flatten(1) if tensor.dim() > 2 else tensor[:, -1:])
    if value is None:
        return unpadded
    others = [each for each in range(1, tensor.dim()) if each != dim]
    differs = (tensor != value).any(dim=others) if others else tensor != value
    used = (differs * torch.arange(1, length + 1)).amax(dim=1)
    is_whole = (length - used < LEAST_TAIL) | (used == 0)  # a sample of one value is blank, not padded
    used = torch.where(is_whole, length, used).double()
    return Padded(length, int(used.max()), float(used.mean()))


def _tail_value(tails: torch.Tensor) -> torch.Tensor | None:
    """The value that most samples end with, if at least two do: what they are padded with."""
    ends = tails[(tails == tails[:, :1]).all(dim=1), 0]
    if len(ends) < LEAST_TAIL:
        return None
    values, counts = torch.unique(ends, return_counts=True)
    most = int(counts.argmax())
    return values[most] if int(counts[most]) >= LEAST_TAIL else None
