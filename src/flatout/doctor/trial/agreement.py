"""Whether a changed loader gives the same numbers: then the losses are the same too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from flatout.doctor.ceiling.batches import tensors_of
from flatout.loader.cached import cached
from flatout.loader.randomness import random_states_kept

RELATIVE, ABSOLUTE = 1e-5, 1e-6
"""Tolerances of equal values; those of a cache are bit for bit the same."""


def batches_agree(loader: DataLoader[Any], settings: Mapping[str, Any], folder: Path) -> bool | None:
    """Compare one batch made as the script makes it with one made with `settings`.

    None: nobody can tell, because samples are random or come from a stream.
    """
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return None
    indices = next(iter(loader.batch_sampler))
    with random_states_kept():
        first, again = (_made(loader, loader.dataset, indices) for _ in range(2))
    if not _are_equal(first, again):
        return None
    changed = cached(loader.dataset, folder, check=False) if settings.get("cache") else loader.dataset
    with random_states_kept():
        _made(loader, changed, indices)
        return _are_equal(first, _made(loader, changed, indices))


def _made(loader: DataLoader[Any], dataset: Any, indices: list[int]) -> Any:
    collate: Any = loader.collate_fn
    return collate([dataset[index] for index in indices])


def _are_equal(one: Any, other: Any) -> bool:
    """All tensors of two batches, in order, within tolerance."""
    pairs = list(zip(list(tensors_of(one)), list(tensors_of(other)), strict=False))
    is_same_number = len(list(tensors_of(one))) == len(list(tensors_of(other)))
    return is_same_number and all(_is_close(a, b) for a, b in pairs)


def _is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return bool(torch.equal(one, other))
    return bool(torch.allclose(one, other, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True))
