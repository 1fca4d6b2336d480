"""Samplers: the fast path's batches for an ordinary DataLoader, so that both paths give the same.

They are DistributedSamplers, so that Lightning leaves them in place and tells them the epoch. Without being
told, each iteration takes the next epoch. Where ranks do not divide a batch evenly, some repeat samples, which
are marked as such.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data import Dataset, DistributedSampler

from flatout.loader.batches import Batches, BatchRule, EpochOrder
from flatout.loader.crop import crop_seed
from flatout.loader.order import Order, Positions
from flatout.loader.plan import BatchPlan
from flatout.loader.ranks import rank_and_world


class Marked(int):
    """Number of a sample that is asked for where there may be repeats: the sample says whether it is one."""

    is_repeat = False


class Repeat(Marked):
    """One that only fills up a short batch."""

    is_repeat = True


def marked(positions: Positions, num_valid: int, *, is_masked: bool) -> list[int]:
    """Numbers of the samples of a batch; with their marks where there may be repeats."""
    found: list[int] = positions.tolist()
    if not is_masked:
        return found
    return [*map(Marked, found[:num_valid]), *map(Repeat, found[num_valid:])]


class OrderSampler(DistributedSampler[int]):
    """This rank's samples of each epoch, for batches of one size.

    Args:
        rank, world_size: given, or found out when the first batch is asked for.
    """

    def __init__(
        self,
        order: Order,
        batch_size: int,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        # The base class's own set-up wants torch.distributed to be running already.
        self._order = order
        self._batch_size = batch_size
        self.drop_last = drop_last
        self._ranks = (rank, world_size)
        self.epoch = 0

    def __len__(self) -> int:
        """Samples that this rank gets in an epoch."""
        rule = self._rule()
        last = rule.num_batches - 1
        return last * self._batch_size + len(rule.places(last)[0]) if rule.num_batches else 0

    def __iter__(self) -> Iterator[int]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        rule, order = self._rule(), EpochOrder(self._order)
        for batch in range(rule.num_batches):
            places, num_valid = rule.places(batch)
            yield from marked(order.positions(epoch, places), num_valid, is_masked=rule.is_masked)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration runs this epoch."""
        self.epoch = epoch

    def _rule(self) -> BatchRule:
        rank, world = rank_and_world(*self._ranks)
        return BatchRule(self._order.num_samples, self._batch_size * world, rank, world, self.drop_last)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One batch that is asked for."""

    indices: tuple[int, ...]
    crop_seed: int
    """What random crops of its epoch are drawn from."""


class PlanSampler(DistributedSampler[Drawn]):
    """This rank's batches of each epoch, as a plan has them: for a DataLoader with `batch_size=None`.

    Args:
        seed: what random crops are drawn from.
        rank, world_size: given, or found out when the first batch is asked for.
    """

    def __init__(
        self, plan: BatchPlan, seed: int = 0, rank: int | None = None, world_size: int | None = None
    ) -> None:
        self._plan = plan
        self._seed = seed
        self._ranks = (rank, world_size)
        self._made: tuple[tuple[int, int], Batches] | None = None
        self.epoch = 0

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self._batches().num_batches

    def __iter__(self) -> Iterator[Drawn]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        batches = self._batches()
        lookup, seed = batches.lookup(), crop_seed(self._seed, epoch)
        for batch in range(batches.num_batches):
            found = marked(*lookup.find(epoch, batch), is_masked=batches.is_masked)
            yield Drawn(tuple(found), seed)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration runs this epoch."""
        self.epoch = epoch

    def _batches(self) -> Batches:
        ranks = rank_and_world(*self._ranks)
        if self._made is None or self._made[0] != ranks:
            self._made = ranks, self._plan.batches(*ranks)
        return self._made[1]


class DrawnSamples(Dataset[Any]):
    """Samples of whole batches: what is drawn in, its samples and the crops' seed out."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __getitem__(self, drawn: Drawn) -> tuple[list[Mapping[str, torch.Tensor]], int]:
        return [self.dataset[index] for index in drawn.indices], drawn.crop_seed


class TakesEpoch(Protocol):
    """Something whose next iteration can be told its epoch."""

    def set_epoch(self, epoch: int) -> None:
        """The next iteration runs this epoch."""


class EpochSetter:
    """What Lightning looks for at a loader to tell it the epoch: `loader.sampler.set_epoch`."""

    def __init__(self, loader: TakesEpoch) -> None:
        self._loader = weakref.ref(loader)  # no cycle: dropping the loader ends its threads at once

    def set_epoch(self, epoch: int) -> None:
        """Passed on to the loader, if it still lives."""
        loader = self._loader()
        if loader is not None:
            loader.set_epoch(epoch)
