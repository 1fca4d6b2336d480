"""A duel: what was found against what stood before, until one is known to be faster or both to be alike."""

from __future__ import annotations

import time
from collections.abc import Callable

from flatout.doctor.tune.interval import LIKELY, SURE, VERY_SURE, ratio_of
from flatout.doctor.tune.race import ENOUGH, Entry, Measure, in_turn
from flatout.doctor.tune.setting import Setting

LOOKS = {4: VERY_SURE, 8: VERY_SURE, 12: SURE}
"""Rounds after which it may end, and how sure it must be then. Who looked after each round, and took 95 % for
enough every time, found a difference between two that are alike in 16 of 100 cases; these looks, in 5."""


def duel(
    before: Setting,
    found: Setting,
    measure: Measure,
    *,
    deadline_s: float = float("inf"),
    clock: Callable[[], float] = time.monotonic,
    entries: list[Entry] | None = None,
) -> list[Entry]:
    """Measure two settings in turn, as often each.

    Args:
        deadline_s: by `clock`; no round begins that would end after it but those up to the first look.
        entries: filled as it goes, for whoever is interrupted.
    """
    both = [] if entries is None else entries
    both += [Entry(before), Entry(found)]
    round_s = 0.0
    for number in range(max(LOOKS)):
        started_s = clock()
        if number in LOOKS and is_decided(both, LOOKS[number]):
            break
        if number >= min(LOOKS) and started_s + round_s > deadline_s:
            break
        for entry in in_turn(both, number):
            entry.measure(measure)
        round_s = clock() - started_s
        if any(entry.failure is not None for entry in both):
            break
    return both


def is_decided(both: list[Entry], sureness: float) -> bool:
    """Whether one is known to be faster, or both are known to be alike."""
    ratio = ratio_of(both[0].rates, both[1].rates, sureness)
    is_alike = ratio.high <= ENOUGH and ratio.low >= 1 / ENOUGH
    return ratio.low > 1.0 or ratio.high < 1.0 or is_alike


def is_likely(both: list[Entry]) -> bool:
    """Whether what was found is faster by more than 5 %, as nine of ten such duels would say.

    On a machine that others use nothing may ever be beyond noise. What leaves results as they are is taken all
    the same: if it was noise, nothing is lost.
    """
    ratio = ratio_of(both[1].rates, both[0].rates, LIKELY)
    return ratio.low > 1.0 and ratio.middle > ENOUGH
