"""Which of the measured settings is taken: the fastest within the budget, or a simpler one as fast as that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flatout.doctor.tune.interval import LIKELY, Interval, ratio_of
from flatout.doctor.tune.race import ALIKE, Entry
from flatout.doctor.tune.setting import Setting


@dataclass(frozen=True)
class Choice:
    """What was taken, and why."""

    entry: Entry
    reason: str


def is_better(one: Entry, other: Entry) -> bool:
    """Whether one is faster than the other, beyond noise and by so much that it matters."""
    if other.is_beaten and not one.is_beaten:
        return True
    ratio = ratio_of(one.rates, other.rates)
    return ratio.middle > ALIKE and ratio.low > 1.0


def choose(
    entries: Sequence[Entry],
    start: Setting,
    cpu_budget: float,
    is_faster: Callable[[Entry, Entry], bool] = is_better,
) -> Choice | None:
    """The setting to go on with; None if none could be measured.

    Args:
        start: what stands now; it stays unless another is better, or it is over the budget.
        cpu_budget: share of all cores that workers may keep busy.
        is_faster: a simpler setting stays unless the fastest is, by this. On a noisy machine nothing is beyond
            noise, and what stands now may be half as fast as what seems the best.
    """
    measured = [entry for entry in entries if entry.slices and entry.failure is None]
    if not measured:
        return None
    allowed = [entry for entry in measured if entry.cpu_share <= cpu_budget]
    if not allowed:
        least = min(measured, key=lambda entry: (entry.cpu_share, entry.setting.weight(start)))
        return Choice(least, f"every one is over the CPU budget of {cpu_budget:.0%}; this is the least over it")
    best = max(allowed, key=lambda entry: entry.rate)
    alike = [entry for entry in allowed if entry is best or not is_faster(best, entry)]
    taken = min(alike, key=lambda entry: (entry.setting.weight(start), -entry.rate))
    return Choice(taken, _reason(taken, best, start, len(measured) - len(allowed)))


def seems_better(one: Entry, other: Entry) -> bool:
    """Whether one is likely faster than the other by so much that it matters; after a single stretch nobody is.

    Likely, not merely ahead: of two that are alike one is always ahead, and each such step aside costs a race
    with still more workers and the longest of proofs (54 stretches for 22 where nothing was to be gained).
    """
    if other.is_beaten and not one.is_beaten:
        return True
    ratio = ratio_of(one.rates, other.rates, LIKELY)
    return ratio.middle > ALIKE and ratio.low > 1.0


def gain_of(entries: Sequence[Entry], setting: Setting, start: Setting) -> Interval | None:
    """How many times as fast a setting is as `start`, if both were measured in one race."""
    by_setting = {entry.setting: entry for entry in entries if entry.slices}
    if setting not in by_setting or start not in by_setting:
        return None
    return ratio_of(by_setting[setting].rates, by_setting[start].rates)


def _reason(taken: Entry, best: Entry, start: Setting, num_over: int) -> str:
    over = f" ({num_over} over the CPU budget)" if num_over else ""
    if taken.setting == start:
        return ("nothing is faster beyond noise" if taken is not best else "the fastest already") + over
    if taken is best:
        return "the fastest" + over
    return "as fast as the fastest, and simpler" + over
