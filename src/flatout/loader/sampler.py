"""OrderSampler: the fast path's orders for an ordinary DataLoader, so that both paths give the same batches."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import DistributedSampler

from flatout.loader.batches import BatchRule, EpochOrder
from flatout.loader.order import Order
from flatout.loader.ranks import rank_and_world


class OrderSampler(DistributedSampler[int]):
    """This rank's part of each epoch.

    A DistributedSampler, so that Lightning leaves it in place and tells it the epoch. Without being told, each
    iteration takes the next epoch. Where ranks do not divide a last batch evenly, some repeat samples.

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
            yield from order.positions(epoch, rule.places(batch)[0]).tolist()

    def set_epoch(self, epoch: int) -> None:
        """The next iteration runs this epoch."""
        self.epoch = epoch

    def _rule(self) -> BatchRule:
        rank, world = rank_and_world(*self._ranks)
        return BatchRule(self._order.num_samples, self._batch_size * world, rank, world, self.drop_last)
