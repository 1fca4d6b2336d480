"""Orders: (seed, epoch, stretch of the epoch) in, positions within the split out. Pure, versioned, any size.

An order knows nothing of ranks, batches or prefetching, so none of them can change it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatout.errors import ConfigError
from flatout.lazy import cached_property
from flatout.loader.permutation import VERSION, mix, permute
from flatout.seeding import child_seed

Positions = NDArray[np.int64]


class Order(Protocol):
    """One pass over a split, in some order."""

    @property
    def name(self) -> str:
        """Name and version: two orders of one name and seed are the same."""

    @property
    def num_samples(self) -> int:
        """Samples an epoch yields."""

    def stretch(self, epoch: int, start: int, stop: int) -> Positions:
        """The samples at places start..stop-1 of this epoch, as positions within the split."""


@dataclass(frozen=True, slots=True)
class Sequential:
    """As they stand in the store."""

    num_samples: int
    name: str = "sequential"

    def stretch(self, epoch: int, start: int, stop: int) -> Positions:
        return np.arange(start, stop, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Every sample once, uniformly shuffled over the whole split, anew each epoch."""

    num_samples: int
    seed: int = 0
    name: str = f"shuffled-{VERSION}"

    def stretch(self, epoch: int, start: int, stop: int) -> Positions:
        places = np.arange(start, stop, dtype=np.int64)
        return permute(places, self.num_samples, child_seed(self.seed, "order", epoch=epoch))


@dataclass(frozen=True)
class Weighted:
    """Samples drawn with replacement, each with a chance proportional to its weight."""

    num_samples: int
    cumulative: NDArray[np.float64]
    seed: int = 0

    @cached_property
    def name(self) -> str:
        return f"weighted-{VERSION}-{digest_of(self.cumulative)}"

    @classmethod
    def of(cls, weights: ArrayLike, seed: int = 0, num_samples: int | None = None) -> Weighted:
        """An epoch of `num_samples` draws (as many as there are weights by default).

        Raises:
            ConfigError: a weight is negative or not finite, or all are 0.
        """
        weights = np.asarray(weights, np.float64)
        if not np.isfinite(weights).all() or (weights < 0).any() or not weights.sum() > 0:
            raise ConfigError("weights must be finite, not negative, and not all 0")
        return cls(num_samples or len(weights), np.cumsum(weights) / weights.sum(), seed)

    @property
    def num_choices(self) -> int:
        """Samples that there are to choose from."""
        return len(self.cumulative)

    def stretch(self, epoch: int, start: int, stop: int) -> Positions:
        uniforms = draw_uniforms(child_seed(self.seed, "weighted", epoch=epoch), start, stop)
        found = np.searchsorted(self.cumulative, uniforms, side="right")
        return np.minimum(found, len(self.cumulative) - 1).astype(np.int64)


@dataclass(frozen=True)
class Balanced:
    """Every class equally often: classes in turn, each one's samples shuffled and begun again when used up."""

    num_samples: int
    members: tuple[Positions, ...]
    """Positions of each class's samples."""
    seed: int = 0

    @cached_property
    def name(self) -> str:
        return f"balanced-{VERSION}-{digest_of(*self.members)}"

    @classmethod
    def of(cls, labels: ArrayLike, seed: int = 0, num_samples: int | None = None) -> Balanced:
        """From the label of each sample of the split."""
        labels = np.asarray(labels)
        members = tuple(np.flatnonzero(labels == label).astype(np.int64) for label in np.unique(labels))
        return cls(num_samples or len(labels), members, seed)

    @property
    def num_choices(self) -> int:
        """Samples that there are to choose from."""
        return sum(len(members) for members in self.members)

    def stretch(self, epoch: int, start: int, stop: int) -> Positions:
        places = np.arange(start, stop, dtype=np.int64)
        seed = child_seed(self.seed, "balanced", epoch=epoch)
        # Shuffled within each round of all classes, so that batches do not repeat one pattern.
        turns, within = np.divmod(places, len(self.members))
        kinds = _shuffle_rounds(turns, within, len(self.members), seed)
        found = np.empty(len(places), np.int64)
        for kind, members in enumerate(self.members):
            mine = np.flatnonzero(kinds == kind)
            laps, at = np.divmod(turns[mine], len(members))
            for lap in np.unique(laps):
                chosen = laps == lap
                shuffled = permute(
                    at[chosen], len(members), child_seed(seed, "lap", epoch=int(lap), worker=kind)
                )
                found[mine[chosen]] = members[shuffled]
        return found


def check_choices(order: Order, num_samples: int) -> None:
    """Refuse an order that was made for other samples, weights or labels of the whole store for one split; and
    the name of one, which is for configs.

    Raises:
        ConfigError: with both numbers, or the name.
    """
    if isinstance(order, str):
        raise ConfigError(f"order '{order}': names are for configs; a loader takes one such as Shuffled")
    choices = getattr(order, "num_choices", num_samples)
    if choices != num_samples:
        raise ConfigError(
            f"order {order.name} chooses from {choices:,} samples, and the split has {num_samples:,}: give it "
            "one weight or label for each sample of the split, in the split's order"
        )


def digest_of(*arrays: NDArray[np.generic]) -> str:
    """What tells an order by its arrays, for its name: a state must not fit one of other weights or classes."""
    found = 0
    for array in arrays:
        found = zlib.crc32(len(array).to_bytes(8, "little"), found)
        found = zlib.crc32(np.ascontiguousarray(array).data, found)
    return f"{found:08x}"


def draw_uniforms(seed: int, start: int, stop: int) -> NDArray[np.float64]:
    """Numbers start..stop-1 of a stream of uniforms in [0, 1): each a function of seed and number alone."""
    counters = np.arange(start, stop, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = mix(counters + np.uint64(seed))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _shuffle_rounds(turns: Positions, within: Positions, size: int, seed: int) -> Positions:
    """Place `within` of each round of `size`, permuted differently in each round."""
    if size < 2 or not len(turns):
        return within
    # Ranks of per-(round, member) hashes: a permutation of the round for each round touched.
    first, last = int(turns[0]), int(turns[-1])
    rounds = np.arange(first, last + 1, dtype=np.uint64)
    first_hashes = (rounds * np.uint64(size))[:, np.newaxis]
    hashes = mix(np.add(first_hashes, np.arange(size, dtype=np.uint64), dtype=np.uint64) + np.uint64(seed))
    ranks = np.argsort(hashes, axis=1, kind="stable")
    return ranks[turns - first, within].astype(np.int64)
