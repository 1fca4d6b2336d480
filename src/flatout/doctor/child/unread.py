"""Unread: larger loaders that a script has made and not read from: what it trains on may be a warm-up.

They are asked as little as possible: a dataset may open files when its length is wanted, or have none before
its set-up. So samplers of torch are asked, and a dataset only where torch had to ask one of its class already.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Container
from typing import Any, NamedTuple

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from flatout.doctor.child.loaders import SeenLoader, key_of

PATIENCE = 3
"""Times the wanted steps that are looked at while a larger loader waits; then those there are have to do."""
KNOWING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)
"""Samplers that know how many samples they draw, or had to find out when they were made."""


MOST_EPOCHS = 2
"""Epochs of a warm-up, where nothing but its size speaks for the one that waits: read in order, as what is
trained on, it may as well be a test set. One that shuffles is waited for longer."""


class Counted(NamedTuple):
    """A loader and the samples of its epoch; 0 where they cannot be told, or are for an evaluation."""

    loader: weakref.ref[DataLoader[Any]]
    key: tuple[Any, ...]
    num_samples: int
    is_shuffled: bool


class Unread:
    """Looks once through all objects (some 50 ms) for what waits, then only whether it still does."""

    def __init__(self) -> None:
        self._own = 0
        self._waiting: list[Counted] | None = None

    def forget(self) -> None:
        """Another loader is trained on now."""
        self._waiting = None

    def larger(self, primary: SeenLoader, read: Container[tuple[Any, ...]]) -> tuple[int, int] | None:
        """Samples of an epoch: of `primary`, and of the largest that has more and was never read from.

        Args:
            read: the keys of those that were.
        """
        left = self._left(primary, read)
        return (self._own, max(each.num_samples for each in left)) if left else None

    def is_waited_for(self, primary: SeenLoader, read: Container[tuple[Any, ...]]) -> bool:
        """Whether one of them is likely enough to be the training that steps of `primary` do not count."""
        is_short = primary.num_epochs <= MOST_EPOCHS
        return any(is_short or each.is_shuffled for each in self._left(primary, read))

    def _left(self, primary: SeenLoader, read: Container[tuple[Any, ...]]) -> list[Counted]:
        if self._waiting is None:
            counted = _counted(primary.loader, primary.loader)
            self._own = counted.num_samples if counted else 0
            self._waiting = _larger_than(self._own, primary.loader) if self._own else []
        return [each for each in self._waiting if each.loader() is not None and each.key not in read]


def _larger_than(num_samples: int, primary: DataLoader[Any]) -> list[Counted]:
    # Not isinstance, which asks objects of all kinds for their class, and some answer with an import.
    loaders = [each for each in gc.get_objects() if issubclass(type(each), DataLoader)]
    found = [_counted(each, primary) for each in loaders]
    return [each for each in found if each is not None and each.num_samples > num_samples]


def _counted(loader: DataLoader[Any], primary: DataLoader[Any]) -> Counted | None:
    try:
        sampler = _sampler_of(loader)
        is_shuffled = type(sampler) in KNOWING and not _reads_in_order(sampler)
        return Counted(weakref.ref(loader), key_of(loader), _num_drawn(loader, primary), is_shuffled)
    except Exception:  # from code of the script's, or of a loader that is only half made
        return None


def _num_drawn(loader: DataLoader[Any], primary: DataLoader[Any]) -> int:
    sampler: Any = _sampler_of(loader)
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        return 0
    if _reads_in_order(sampler) and not _reads_in_order(_sampler_of(primary)):
        return 0  # read in order while the training shuffles: for an evaluation
    if type(sampler) in KNOWING:
        return len(sampler)
    is_alike = type(dataset) is type(primary.dataset)
    return len(dataset) if is_alike else 0


def _reads_in_order(sampler: Any) -> bool:
    """What ranks share may be in order, too: `DistributedSampler(..., shuffle=False)`."""
    if type(sampler) is DistributedSampler:
        return not sampler.shuffle
    return type(sampler) is SequentialSampler


def _sampler_of(loader: DataLoader[Any]) -> Any:
    """What says which samples are read: inside of torch's batch sampler, or somebody's own."""
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler
    return batches.sampler if type(batches) is BatchSampler else batches
