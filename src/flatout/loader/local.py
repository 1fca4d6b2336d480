"""ShardLocal: an order for cold and remote stores: shards in random order, samples shuffled over a few of them.

Neighbours in the order come from a window of `window` shards that are read anew in each epoch and in another
company: far less seeking than a global shuffle. What it costs in randomness: a batch never mixes samples from
outside its window; with 16 shards of 64 there are still as many companies as ways to choose 16 of 64. Like
every order it knows nothing of ranks, so it is the same on any number of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flatout.lazy import cached_property
from flatout.loader.order import Positions, digest_of
from flatout.loader.permutation import VERSION, permute
from flatout.seeding import child_seed

WINDOW = 16


@dataclass(frozen=True)
class ShardLocal:
    """Every sample once. `shards` is the shard of each sample of the split."""

    members: tuple[Positions, ...]
    """Positions of each shard's samples."""
    seed: int = 0
    window: int = WINDOW

    @classmethod
    def of(cls, shards: NDArray[np.int32], seed: int = 0, window: int = WINDOW) -> ShardLocal:
        """From the shard of each sample of the split."""
        order = np.argsort(shards, kind="stable").astype(np.int64)
        edges = np.flatnonzero(np.diff(shards[order])) + 1
        return cls(tuple(np.split(order, edges)), seed, window)

    @cached_property
    def name(self) -> str:
        return f"shard-local-{VERSION}-{self.window}-{digest_of(*self.members)}"

    @property
    def num_samples(self) -> int:
        return sum(len(members) for members in self.members)

    def stretch(self, epoch: int, start: int, stop: int) -> Positions:
        seed = child_seed(self.seed, "shards", epoch=epoch)
        turn = permute(np.arange(len(self.members)), len(self.members), seed)
        groups = [turn[at : at + self.window] for at in range(0, len(turn), self.window)]
        ends = np.cumsum([sum(len(self.members[shard]) for shard in group) for group in groups])
        found = []
        for number in range(int(np.searchsorted(ends, start, side="right")), len(groups)):
            first = int(ends[number - 1]) if number else 0
            if first >= stop:
                break
            places = np.arange(max(start, first), min(stop, int(ends[number]))) - first
            company = np.concatenate([self.members[shard] for shard in groups[number]])
            found.append(company[permute(places, len(company), child_seed(seed, "window", worker=number))])
        return np.concatenate(found) if found else np.empty(0, np.int64)
