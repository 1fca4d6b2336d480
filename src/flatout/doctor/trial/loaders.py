"""The script's loader with other settings: same dataset, sampler and collate, built beside the script's own."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Subset

from flatout.loader.cached import cached

FILL_S = 10.0
"""A cache is filled with some batches for this long before it is measured; these are read again and again."""
FILL_BATCHES = 16
LOADER_SETTINGS = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory")


class Tried(DataLoader[Any]):
    """A loader with a number of workers that is the doctor's: torch's warning of it would seem the script's."""

    def check_worker_number_rationality(self) -> None:
        """Said at the making and at each epoch; how it does is measured."""


def changed_loader(loader: DataLoader[Any], settings: Mapping[str, Any], folder: Path) -> DataLoader[Any]:
    """A loader as the script would have it with `settings`; see `Remedy.settings` for their names.

    Raises:
        CacheError: the dataset cannot be cached.
    """
    dataset, given = loader.dataset, _picked(loader, settings)
    if settings.get("cache"):
        filled, given["batch_sampler"] = _filled(loader, folder)
        return Tried(filled, **given)
    if isinstance(dataset, IterableDataset):
        size = settings.get("batch_size", loader.batch_size)
        return Tried(dataset, batch_size=size, drop_last=loader.drop_last, **given)
    if "batch_size" in settings:
        given["batch_sampler"] = BatchSampler(loader.sampler, settings["batch_size"], loader.drop_last)
    elif loader.batch_sampler is not None:
        given["batch_sampler"] = loader.batch_sampler
    else:
        given |= {"batch_size": None, "sampler": loader.sampler}
    return Tried(dataset, **given)


def _picked(loader: DataLoader[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The script's arguments, with the changes, without those that mean nothing without workers."""
    given: dict[str, Any] = {name: getattr(loader, name) for name in LOADER_SETTINGS}
    given |= {name: value for name, value in settings.items() if name in LOADER_SETTINGS}
    names = ("collate_fn", "worker_init_fn", "generator", "pin_memory_device")
    given |= {name: getattr(loader, name) for name in names}
    if given["num_workers"]:
        return given | {"timeout": loader.timeout, "multiprocessing_context": loader.multiprocessing_context}
    return {
        name: value for name, value in given.items() if name not in ("prefetch_factor", "persistent_workers")
    }


def _filled(loader: DataLoader[Any], folder: Path) -> tuple[Any, list[list[int]]]:
    """Some batches of the dataset in a cache of their own, read until the epoch has its length."""
    indices: list[list[int]] = []
    end = perf_counter() + FILL_S
    asked = loader.batch_sampler if loader.batch_sampler is not None else ([index] for index in loader.sampler)
    wanted = list(islice(iter(asked), FILL_BATCHES))
    flat = [index for batch in wanted for index in batch]
    subset: Subset[Any] = Subset(loader.dataset, flat)
    kept = cached(subset, folder, num_checked=2)
    position = 0
    for batch in wanted:
        places = list(range(position, position + len(batch)))
        position += len(batch)
        for place in places:
            kept[place]
        indices.append(places)
        if perf_counter() > end:
            break
    kept.close()
    length = len(loader) if hasattr(loader.dataset, "__len__") else len(indices)
    return kept, list(islice(cycle(indices), max(length, 1)))
