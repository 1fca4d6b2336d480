"""Whether a changed loader gives the same numbers: then the losses are the same too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from flatout.doctor.ceiling.batches import tensors_of
from flatout.loader.cached import cached
from flatout.loader.randomness import random_states_kept

RELATIVE, ABSOLUTE = 1e-5, 1e-6
"""Tolerances of equal values; those of a cache are bit for bit the same."""


def batches_agree(
    loader: DataLoader[Any],
    settings: Mapping[str, Any],
    folder: Path,
    advance: Callable[[Any], Any] = next,
) -> bool | None:
    """Compare one batch made as the script makes it with one made with `settings`.

    Args:
        advance: torch's own `__next__`, unwatched.

    None: nobody can tell, because samples are random or come from a stream.
    """
    if isinstance(loader.dataset, IterableDataset):
        return None
    asked = next(iter(loader.sampler if loader.batch_sampler is None else loader.batch_sampler))
    with random_states_kept():
        first, again = (_made(loader, loader.dataset, asked) for _ in range(2))
    if not _are_equal(first, again):
        return None
    with random_states_kept():
        if settings.get("cache"):
            changed = cached(loader.dataset, folder, check=False)
            _made(loader, changed, asked)
            return _are_equal(first, _made(loader, changed, asked))
        has_workers = bool(settings.get("num_workers", loader.num_workers))
        if has_workers != bool(loader.num_workers):  # one of the two is made in a worker, the other is not
            return _are_equal(first, _made_by_worker(loader, asked, advance))
    return True


def _made(loader: DataLoader[Any], dataset: Any, asked: Any) -> Any:
    """What `asked` for makes: a list of indices, or one index where the loader makes no batches."""
    collate: Any = loader.collate_fn
    if loader.batch_sampler is None:
        return collate(dataset[asked])
    return collate([dataset[index] for index in asked])


def _made_by_worker(loader: DataLoader[Any], asked: Any, advance: Callable[[Any], Any]) -> Any:
    """The same by a worker as the script would have it: a dataset may look at who asks."""
    given: dict[str, Any] = {"batch_sampler": [asked]}
    if loader.batch_sampler is None:
        given = {"batch_size": None, "sampler": [asked]}
    one: DataLoader[Any] = DataLoader(
        loader.dataset,
        num_workers=1,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        timeout=loader.timeout,
        **given,
    )
    return advance(one._get_iterator())


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
