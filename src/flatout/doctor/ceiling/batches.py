"""Batches as trees of tensors: how large, how many samples, a copy that the script may change as it likes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch

MAX_DEPTH = 8
MAX_VALUES = 1000
"""Of a longer list only the beginning is looked at: texts and numbers, not tensors, come by the thousand."""


def tensors_of(batch: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Every tensor in lists, tuples, mappings and attributes of a batch."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif depth < MAX_DEPTH and not isinstance(batch, str | bytes | int | float):
        for value in islice(_inside(batch), MAX_VALUES):
            yield from tensors_of(value, depth + 1)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple):
        return value
    return vars(value).values() if hasattr(value, "__dict__") and not isinstance(value, type) else ()


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
