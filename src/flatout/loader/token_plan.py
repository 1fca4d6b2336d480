"""Batches by tokens: as many samples as padded length x samples allows, equally many batches in every epoch.

Samples stand from short to long in groups of similar length. What a batch may hold follows from the longest of
its last group, so that its samples can change places within their groups without breaking the limit: each epoch
shuffles every group, and the batches, while their edges are planned once. So all epochs have the same length,
which whoever counts steps relies on, and any batch of any epoch is found without planning the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flatout.errors import ConfigError
from flatout.loader.order import Order, Positions, Sequential, Shuffled
from flatout.loader.permutation import permute
from flatout.seeding import child_seed
from flatout.types import Array

VERSION = 1
"""Raised when the same seed would give other batches."""
STEP = 32
"""Lengths of a group differ by at most one part in this: what is lost is 3 % of a batch at the most."""
MIN_GROUP = 128
"""Groups of fewer samples join the next one: a sample needs others to change places with."""
WIDEST = 1.25
"""Longest by shortest of a group that is joined from small ones."""


@dataclass(frozen=True, eq=False)
class TokenPlan:
    """The batches of all ranks, the same in every epoch up to shuffling. An order over the sorted places."""

    name: str
    seed: int | None
    """None leaves samples and batches from short to long."""
    max_tokens: int
    ranks: int
    """Batches have a multiple of so many samples, but for a short last one."""
    members: Positions
    """Samples from short to long."""
    group_ends: Array
    ends: Array
    """Where each batch ends among them."""
    widths: Array
    """What each batch may be padded to."""
    _sums: dict[int, Array] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, lengths: Array, max_tokens: int, ranks: int, seed: int | None = None, name: str = ""
    ) -> TokenPlan:
        """From the padded length of each sample.

        Raises:
            ConfigError: one is above `max_tokens`.
        """
        if lengths.max(initial=0) > max_tokens:
            raise ConfigError(f"a sample of {lengths.max():,} steps does not fit max_tokens {max_tokens:,}")
        lengths = np.maximum(lengths, 1)
        # 16 bits are sorted by radix: 1 million in 16 ms instead of 140.
        sortable = lengths.astype(np.uint16) if lengths.max(initial=0) < 1 << 16 else lengths
        members = np.argsort(sortable, kind="stable").astype(np.int64)
        ordered = lengths[members]
        group_ends = _groups(ordered)
        caps = ordered[group_ends - 1] if len(group_ends) else np.empty(0, np.int64)
        ends = cut(group_ends.tolist(), caps.tolist(), max_tokens, ranks)
        widths = caps[np.searchsorted(group_ends, ends, side="left")]
        return cls(name, seed, max_tokens, ranks, members, group_ends, ends, widths)

    @property
    def num_samples(self) -> int:
        return len(self.members)

    @property
    def has_short(self) -> bool:
        """Whether the last batch has fewer samples than ranks."""
        return self.num_samples % self.ranks > 0

    @property
    def starts(self) -> Array:
        """Where each batch begins."""
        return np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])[: len(self.ends)]

    def turns(self) -> Order:
        """The order of the batches in an epoch; a short one stays at the end."""
        num_full = len(self.ends) - self.has_short
        if self.seed is None:
            return Sequential(num_full)
        return Shuffled(num_full, child_seed(self.seed, "tokens"))

    def sums(self, epoch: int) -> Array:
        """Samples before each batch of an epoch, and at its end."""
        known = self._sums.get(epoch)
        if known is None:
            turns, sizes = self.turns(), self.ends - self.starts
            full, short = np.split(sizes, [turns.num_samples])
            turned = np.concatenate([full[turns.stretch(epoch, 0, len(full))], short])
            known = np.concatenate([np.zeros(1, np.int64), np.cumsum(turned)])
            self._sums.clear()  # one epoch is asked about at a time
            self._sums[epoch] = known
        return known

    def stretch(self, epoch: int, start: int, stop: int) -> Positions:
        """The samples at these places of the row from short to long, each group shuffled."""
        if self.seed is None or start >= stop:
            return self.members[start:stop]
        seed = child_seed(self.seed, "groups", epoch=epoch)
        found = []
        first, last = np.searchsorted(self.group_ends, [start, stop - 1], side="right").tolist()
        for group in range(first, last + 1):
            low, high = int(self.group_ends[group - 1]) if group else 0, int(self.group_ends[group])
            places = np.arange(max(low, start), min(high, stop)) - low
            found.append(self.members[low + permute(places, high - low, child_seed(seed, "", worker=group))])
        return np.concatenate(found)


def _groups(ordered: Array) -> Array:
    """Ends of the groups of lengths that rise."""
    if not len(ordered):
        return np.empty(0, np.int64)
    grid, longest = [int(ordered[0])], int(ordered[-1])
    while grid[-1] < longest:
        grid.append(grid[-1] + max(1, grid[-1] // STEP))
    ends = np.unique(np.searchsorted(ordered, grid, side="right"))
    return np.array(_merged(ends.tolist(), ordered), np.int64)


def _merged(ends: list[int], ordered: Array) -> list[int]:
    """Groups with enough samples, or as wide as they may be."""
    merged: list[int] = []
    begin, last = 0, 0
    for end in ends:
        if last > begin and ordered[end - 1] > ordered[begin] * WIDEST:
            merged.append(last)
            begin = last
        if end - begin >= MIN_GROUP:
            merged.append(end)
            begin = end
        last = end
    return merged if begin == last else [*merged, last]


def cut(group_ends: list[int], caps: list[int], max_tokens: int, ranks: int) -> Array:
    """Ends of batches with a multiple of `ranks` samples each, as large as the caps of their groups allow.

    Steps from group to group, not from batch to batch: 1 million samples take milliseconds.
    """
    ends: list[Array] = []
    at = group = 0
    while group < len(group_ends):
        if group_ends[group] <= at:
            group += 1
            continue
        full = max_tokens // caps[group] * ranks
        count = (group_ends[group] - at) // full
        if count:
            ends.append(at + full * np.arange(1, count + 1))
        else:
            ends.append(np.array([_reach(at, group, group_ends, caps, max_tokens, ranks)]))
        at = int(ends[-1][-1])
    return np.concatenate(ends).astype(np.int64) if ends else np.empty(0, np.int64)


def _reach(at: int, group: int, group_ends: list[int], caps: list[int], max_tokens: int, ranks: int) -> int:
    """End of a batch that begins in a group and may go on into later ones."""
    size = 0
    for end, cap in zip(group_ends[group:], caps[group:], strict=True):
        most = max_tokens // cap * ranks
        size = max(size, min(most, end - at) // ranks * ranks)
        if most <= end - at:
            break
    return at + size if size else group_ends[-1]
