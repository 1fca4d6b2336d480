"""Which samples make up which batch of which rank: arithmetic over the global order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flatout.errors import ConfigError
from flatout.loader.order import Order, Positions

BLOCK = 16384
"""Places of the order computed at a time: 0.2 us each in blocks, 2 us each for a batch of 64 alone."""


@dataclass(frozen=True, slots=True)
class BatchRule:
    """How an epoch is cut. `global_batch` is kept across a resume with another number of ranks."""

    num_samples: int
    global_batch: int
    rank: int = 0
    world: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ConfigError(f"rank {self.rank} of {self.world} ranks does not exist")
        if self.global_batch < self.world:
            raise ConfigError(
                f"a global batch of {self.global_batch} cannot serve {self.world} ranks; raise batch_size"
            )

    @property
    def num_batches(self) -> int:
        """Batches of an epoch, the same for every rank."""
        if self.drop_last:
            return self.num_samples // self.global_batch
        return -(-self.num_samples // self.global_batch)

    def samples_after(self, batch: int) -> int:
        """Samples of the epoch that all ranks together have seen after so many batches."""
        return min(batch * self.global_batch, self.num_samples)

    def places(self, batch: int) -> tuple[Positions, int]:
        """This rank's places in the epoch's order, and how many of them are its own.

        In a short last batch every rank gets equally many, at least one: those past the end repeat earlier
        places and do not count.
        """
        start = batch * self.global_batch
        stop = min(start + self.global_batch, self.num_samples)
        if stop - start == self.global_batch:
            low = start + self.global_batch * self.rank // self.world
            high = start + self.global_batch * (self.rank + 1) // self.world
            return np.arange(low, high, dtype=np.int64), high - low
        each = -(-(stop - start) // self.world)
        mine = np.arange(start + each * self.rank, start + each * (self.rank + 1), dtype=np.int64)
        num_valid = int(np.clip(stop - mine[0], 0, each)) if each else 0
        return start + (mine - start) % (stop - start), num_valid

    @property
    def largest(self) -> int:
        """Rows of the largest batch of this rank."""
        return -(-self.global_batch // self.world)


class EpochOrder:
    """Looks up places of an order, computing whole blocks and keeping the last two."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._blocks: dict[tuple[int, int], Positions] = {}

    def positions(self, epoch: int, places: Positions) -> Positions:
        """The samples at these places, which lie close together."""
        if not len(places):
            return places
        first, last = int(places.min()) // BLOCK, int(places.max()) // BLOCK
        if first == last:
            return self._block(epoch, first)[places - first * BLOCK]
        found = np.empty(len(places), np.int64)
        for block in range(first, last + 1):
            inside = (places >= block * BLOCK) & (places < (block + 1) * BLOCK)
            found[inside] = self._block(epoch, block)[places[inside] - block * BLOCK]
        return found

    def _block(self, epoch: int, block: int) -> Positions:
        known = self._blocks.get((epoch, block))
        if known is None:
            stop = min((block + 1) * BLOCK, self._order.num_samples)
            known = self._order.stretch(epoch, block * BLOCK, stop)
            if len(self._blocks) >= 4:  # producers may be in two epochs at once
                self._blocks = dict(list(self._blocks.items())[-3:])
            self._blocks[epoch, block] = known
        return known
