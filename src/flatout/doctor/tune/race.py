"""Races: settings measured in turn, round after round, those that are clearly slower left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from flatout.doctor.tune.interval import Interval, ratio_of, spread_of
from flatout.doctor.tune.setting import Setting

MOST_ROUNDS = 6
LEAST_ROUNDS = 3
"""Rounds before an interval is believed."""
GROSS = 0.75
"""Who is below this share of the leader's rate in each of the first two rounds is left out."""
ALIKE = 1.02
"""Rates this close are the same to us."""
ENOUGH = 1.05
"""What is known to be within this needs no further round: three would not be enough for less, even with
stretches that differ by 2 %."""


@dataclass(frozen=True)
class Slice:
    """One timed stretch of one setting."""

    samples_per_s: float
    num_batches: int
    seconds: float
    wait_share: float
    cpu_share: float
    """Part of all cores that workers or producers kept busy; the training thread's own is not counted."""
    memory_bytes: int
    """Private memory of the process and its workers."""
    first_batch_s: float


@dataclass(frozen=True)
class Failed:
    """Why a setting could not be measured."""

    reason: str


Measure = Callable[[Setting], Slice | Failed]


@dataclass
class Entry:
    """A setting and what was measured of it."""

    setting: Setting
    slices: list[Slice] = field(default_factory=list)
    failure: str | None = None
    is_beaten: bool = False
    """Left out because it is clearly slower than another."""

    @property
    def rates(self) -> list[float]:
        """Samples a second of each round."""
        return [each.samples_per_s for each in self.slices]

    @property
    def rate(self) -> float:
        """Median samples a second."""
        return median(self.rates)

    @property
    def spread(self) -> Interval:
        """Samples a second with their interval."""
        return spread_of(self.rates)

    @property
    def cpu_share(self) -> float:
        """Median share of the cores."""
        return median(each.cpu_share for each in self.slices)

    @property
    def memory_bytes(self) -> int:
        """The most that was used."""
        return max(each.memory_bytes for each in self.slices)

    @property
    def wait_share(self) -> float:
        """Median share of the time waited."""
        return median(each.wait_share for each in self.slices)

    def measure(self, measure: Measure) -> None:
        """One more stretch."""
        found = measure(self.setting)
        if isinstance(found, Failed):
            self.failure = found.reason
        else:
            self.slices.append(found)


def race(
    settings: Sequence[Setting],
    measure: Measure,
    *,
    deadline_s: float = float("inf"),
    end_s: float = float("inf"),
    most_rounds: int = MOST_ROUNDS,
    clock: Callable[[], float] = time.monotonic,
    entries: list[Entry] | None = None,
    cpu_budget: float = float("inf"),
) -> list[Entry]:
    """Measure settings in turn until it is clear which is fastest, or the deadline has come.

    Nobody is left out after a single stretch, which anything may have disturbed.

    Args:
        deadline_s: by `clock`; the rounds that an interval needs are run beyond it.
        end_s: the same, when even these end; a round that would not end by then, as long as the one before
            took, is not begun. The first is always run.
        entries: filled as it goes, for whoever is interrupted.
        cpu_budget: who is over it will not be taken, and leaves nobody else out.

    Returns:
        An entry for each setting that was measured or failed, in the order given.
    """
    found = [] if entries is None else entries
    found += [Entry(setting) for setting in dict.fromkeys(settings)]
    live = list(found)
    each_s = 0.0
    for number in range(most_rounds):
        started_s = clock()
        if number and (started_s + each_s * len(live) > end_s or is_clear(live)):
            break
        if number >= LEAST_ROUNDS and started_s >= deadline_s:
            break
        for entry in in_turn(live, number):
            entry.measure(measure)
        each_s = (clock() - started_s) / max(1, len(live))
        live = [entry for entry in live if entry.failure is None]
        live = _those_left(live, number + 1, cpu_budget)
        if len(live) < 2 and number:
            break
    return found


def is_clear(live: Sequence[Entry]) -> bool:
    """Whether each is known to be slower than the fastest, or to be about as fast."""
    if not live or len(live[0].rates) < LEAST_ROUNDS:
        return False
    leader = max(live, key=lambda entry: entry.rate)
    ratios = [ratio_of(leader.rates, entry.rates) for entry in live if entry is not leader]
    return all(ratio.low > 1.0 or ratio.high <= ENOUGH for ratio in ratios)


def in_turn(entries: Sequence[Entry], number: int) -> list[Entry]:
    """Each round starts with another one, so that nobody always runs after the same neighbour."""
    start = number % max(1, len(entries))
    return [*entries[start:], *entries[:start]]


def _those_left(live: list[Entry], num_rounds: int, cpu_budget: float) -> list[Entry]:
    """Without those that are clearly slower than the leader: the fastest that may be taken."""
    if len(live) < 2 or num_rounds < 2:
        return live
    allowed = [entry for entry in live if entry.cpu_share <= cpu_budget]
    leader = max(allowed or live, key=lambda entry: entry.rate)
    for entry in live:
        entry.is_beaten = entry is not leader and _is_beaten(entry, leader, num_rounds)
    return [entry for entry in live if not entry.is_beaten]


def _is_beaten(entry: Entry, leader: Entry, num_rounds: int) -> bool:
    if num_rounds < LEAST_ROUNDS:
        return max(a / b for a, b in zip(entry.rates, leader.rates, strict=True)) < GROSS
    return ratio_of(entry.rates, leader.rates).high < 1.0
