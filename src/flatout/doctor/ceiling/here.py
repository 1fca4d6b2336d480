"""Parts of a batch's way, done in the training thread itself with nobody beside it: what each takes alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from statistics import fmean, median
from time import perf_counter, process_time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from flatout.doctor.ceiling.batches import tensors_of
from flatout.doctor.ceiling.sources import LoaderSource
from flatout.loader.randomness import random_states_kept

HERE_S = 1.0
"""Batches are made for this long ..."""
HERE_BATCHES = 9
"""... but at most so many; the first is left out."""
MOST_S = 5.0
"""Samples that take longer than this for one batch are not made again."""
NUM_TIMED, TIMED_S = 5, 0.5
"""Of anything else the median of so many counts, or of as many as fit into this time."""


def measure_parts(base: LoaderSource, loader: DataLoader[Any], batch: Any, optimiser: Any) -> dict[str, float]:
    """All that can be told, under the names of `flatout.doctor.rules.facts`.

    What fails is left out: this is somebody else's code where it was not meant to run.
    """
    device = device_of(optimiser)
    parts: tuple[Callable[[], dict[str, float]], ...] = (
        lambda: measure_here(base, loader),
        lambda: {} if loader.num_workers else {"hand_over_s": share_seconds(batch)},
        lambda: measure_augmentation(batch, device),
    )
    found: dict[str, float] = {}
    for part in parts:
        with suppress(Exception), random_states_kept():
            found |= part()
    return found


def measure_here(base: LoaderSource, loader: DataLoader[Any]) -> dict[str, float]:
    """Seconds of a batch's samples, of all else that a loader without workers does for it, and of stacking.

    Empty for a stream; what cannot be stacked has no `stack_here_s`.
    """
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return {}
    times, items, end = [], [], perf_counter() + HERE_S
    for indices in islice(iter(loader.batch_sampler), HERE_BATCHES):
        start = perf_counter()
        items = _items(loader.dataset, indices)
        times.append(perf_counter() - start)
        if perf_counter() > end:
            break
    found = {
        "items_here_s": fmean(times[1:] or times),
        "collate_here_s": _collated_s(base, items, loader.collate_fn),
    }
    with suppress(TypeError, RuntimeError, KeyError):  # samples of unlike kind or shape
        found["stack_here_s"] = _typical(lambda: default_collate(items), perf_counter)
    return found


def _collated_s(base: LoaderSource, items: list[Any], collate: Any) -> float:
    """Seconds that a loader takes for a batch of samples in memory: its own, and its collate function."""
    batches = [list(range(len(items)))] * NUM_TIMED
    resident: DataLoader[Any] = DataLoader(_Items(items), batch_sampler=batches, collate_fn=collate)
    return _typical(base.like("here", resident._get_iterator).next, perf_counter)


class _Items(Dataset[Any]):
    """Samples in memory, one by one as a dataset gives them."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def __getitem__(self, index: int) -> Any:
        return self._items[index]


def _items(dataset: Any, indices: list[Any]) -> list[Any]:
    """As torch's fetcher asks for them.

    Raises:
        TimeoutError: they take too long.
    """
    if several := getattr(dataset, "__getitems__", None):
        return list(several(indices))
    items, end = [], perf_counter() + MOST_S
    for index in indices:
        items.append(dataset[index])
        if perf_counter() > end:
            raise TimeoutError(f"{len(items)} of {len(indices)} samples took {MOST_S:g} s")
    return items


def share_seconds(batch: Any) -> float:
    """What a copy of one batch into shared memory takes: the way that a worker's batch would go."""

    def share() -> None:
        for tensor in tensors_of(batch):
            if tensor.device.type == "cpu":
                tensor.detach().clone().share_memory_()  # type: ignore[no-untyped-call]

    return _typical(share, process_time)


def measure_augmentation(batch: Any, device: torch.device) -> dict[str, float]:
    """What augmenting the whole batch takes where the model computes; empty if nothing in it is to augment.

    A usual chain stands for all others: shift, filter, scale and noise, of samples with numbers of their own.
    """
    floats = [each for each in tensors_of(batch) if each.is_floating_point() and each.dim() >= 2]
    if not floats:
        return {}
    values = max(floats, key=torch.numel).detach().to(device)
    with torch.no_grad():
        # A number of the result, because a device computes behind the host's back.
        return {"augment_here_s": _typical(lambda: float(_augmented(values).flatten()[0]), perf_counter)}


def _augmented(values: torch.Tensor) -> torch.Tensor:
    spectrum = torch.fft.rfft(values.roll(3, -1).float())
    gains = torch.rand((len(values),) + (1,) * (values.dim() - 1), device=values.device)
    kept = torch.rand(spectrum.shape[-1], device=values.device)
    filtered: torch.Tensor = torch.fft.irfft(spectrum * kept, values.shape[-1])
    return filtered * gains + 0.05 * torch.randn_like(values)


def _typical(call: Callable[[], Any], clock: Callable[[], float]) -> float:
    times: list[float] = []
    end = perf_counter() + TIMED_S
    while len(times) < NUM_TIMED and (not times or perf_counter() < end):
        start = clock()
        call()
        times.append(clock() - start)
    return median(times)


def device_of(optimiser: Any) -> torch.device:
    """Where the parameters of the model are."""
    groups = getattr(optimiser, "param_groups", None) or [{}]
    first = next(iter(groups[0].get("params", ())), None)
    return first.device if isinstance(first, torch.Tensor) else torch.device("cpu")
