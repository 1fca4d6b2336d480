"""TokenBatches: a token plan seen from one rank, on any number of ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flatout.errors import LoaderStateError
from flatout.loader.batches import BLOCK, EpochOrder, Lookup, check_rank, share_of
from flatout.loader.order import Positions
from flatout.loader.token_plan import TokenPlan
from flatout.types import Array


@dataclass(frozen=True, eq=False)
class TokenBatches:
    """A token plan seen from one rank, on any number of ranks."""

    plan: TokenPlan
    rank: int
    world: int
    drop_last: bool = False

    def __post_init__(self) -> None:
        check_rank(self.rank, self.world)

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def num_samples(self) -> int:
        return self.plan.num_samples

    @property
    def num_batches(self) -> int:
        return len(self.plan.ends) - (self.drop_last and self.plan.has_short)

    @property
    def largest(self) -> int:
        return int((-(-self._sizes // self.world)).max(initial=0))

    @property
    def is_masked(self) -> bool:
        return self.world > 1 and not (self.drop_last and self.world == self.plan.ranks)

    @property
    def global_batch(self) -> int:
        return self.plan.ranks

    @property
    def max_tokens(self) -> int:
        return self.plan.max_tokens

    @property
    def most_tokens(self) -> int:
        """What a batch of one rank holds at the most on this number of ranks."""
        return int((-(-self._sizes // self.world) * self.plan.widths).max(initial=0))

    def samples_after(self, epoch: int, batch: int) -> int:
        return int(self.plan.sums(epoch)[batch])

    def batch_after(self, epoch: int, samples: int) -> int | None:
        sums = self.plan.sums(epoch)
        batch = int(np.searchsorted(sums, samples))
        return batch if batch < len(sums) and sums[batch] == samples else None

    def check_room(self, most_tokens: int) -> None:
        """Refuse a plan that was made for more ranks, if its batches are too large for these.

        Raises:
            LoaderStateError: with the numbers and what to change.
        """
        if self.most_tokens > most_tokens:
            raise LoaderStateError(
                f"the saved epoch was planned for {self.plan.ranks} ranks with max_tokens "
                f"{self.max_tokens:,}; on {self.world} a batch would have up to {self.most_tokens:,} tokens, "
                f"and max_tokens is {most_tokens:,}. Raise it so far, or use as many ranks as before"
            )

    def lookup(self) -> Lookup:
        return _TokenLookup(self)

    @property
    def _sizes(self) -> Array:
        return self.plan.ends - self.plan.starts


class _TokenLookup(Lookup):
    """Batches come from everywhere in the row, so all blocks of two epochs are kept: 16 bytes a sample."""

    def __init__(self, batches: TokenBatches) -> None:
        self._batches = batches
        self._plan = batches.plan
        self._starts = batches.plan.starts
        self._turns = EpochOrder(batches.plan.turns())
        self._num_full = len(batches.plan.ends) - batches.plan.has_short
        num_blocks = -(-batches.num_samples // BLOCK)
        self._samples = EpochOrder(batches.plan, num_kept=2 * num_blocks + 2)

    def find(self, epoch: int, batch: int) -> tuple[Positions, int]:
        is_short = batch >= self._num_full
        at = batch if is_short else int(self._turns.positions(epoch, np.array([batch]))[0])
        places, num_valid = share_of(
            int(self._starts[at]),
            int(self._plan.ends[at]),
            self._batches.rank,
            self._batches.world,
            is_short=is_short,
        )
        return self._samples.positions(epoch, places), num_valid
