"""Batches as trees of tensors: how large, how many samples, a copy that the script may change as it likes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch

MAX_DEPTH = 8


def tensors_of(batch: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Every tensor in lists, tuples, mappings and attributes of a batch."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif depth >= MAX_DEPTH:
        return
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_of(value, depth + 1)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors_of(value, depth + 1)
    elif hasattr(batch, "__dict__"):
        yield from tensors_of(vars(batch), depth + 1)


def num_samples_of(batch: Any) -> int | None:
    """Length of the first tensor's first dimension; None where there is none."""
    first = next(tensors_of(batch), None)
    return int(first.shape[0]) if first is not None and first.dim() else None


def bytes_of(batch: Any) -> int:
    """Bytes of all its tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(batch))


def copy_of(batch: Any) -> Any:
    """The same batch in memory of its own, pinned where it was; what cannot be copied stays itself."""
    if isinstance(batch, torch.Tensor):
        own = batch.detach().clone()
        return own.pin_memory() if batch.is_pinned() else own
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(copy_of(value) for value in batch))
    if type(batch) in (list, tuple):
        return type(batch)(copy_of(value) for value in batch)
    if type(batch) is dict:
        return {name: copy_of(value) for name, value in batch.items()}
    try:
        return copy.deepcopy(batch)
    except Exception:  # anything may be in a batch; its timing is worth more than its independence
        return batch
