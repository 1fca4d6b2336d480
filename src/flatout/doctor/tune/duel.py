"""A duel: what was found against what stood before, until it is known to be faster or likely is not."""

from __future__ import annotations

import time
from collections.abc import Callable

from flatout.doctor.tune.interval import LIKELY, SURE, VERY_SURE, ratio_of
from flatout.doctor.tune.race import ALIKE, ENOUGH, Entry, Measure, in_turn
from flatout.doctor.tune.setting import Setting

LOOKS = {4: VERY_SURE, 8: VERY_SURE, 12: SURE}
"""Rounds after which a gain may end it, and how sure that must be then. Who looked after each round, and took
95 % for enough every time, found a difference between two that are alike in 16 of 100 cases; these, in 5."""


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
        if number >= min(LOOKS) and (is_decided(both, number) or started_s + round_s > deadline_s):
            break
        for entry in in_turn(both, number):
            entry.measure(measure)
        round_s = clock() - started_s
        if any(entry.failure is not None for entry in both):
            break
    return both


def is_decided(both: list[Entry], num_rounds: int) -> bool:
    """Whether what was found is known to be faster, or likely is not by so much that it matters.

    The second is asked after every round, and needs less: what ends a duel without a change takes nothing for a
    gain, however often one looks.
    """
    before, found = (entry.rates for entry in both)
    is_gain = num_rounds in LOOKS and ratio_of(found, before, LOOKS[num_rounds]).low > 1.0
    return is_gain or ratio_of(found, before, LIKELY).high <= ENOUGH


def is_proven(one: Entry, other: Entry) -> bool:
    """Whether a duel shows one to be faster by so much that it matters: sure after all rounds, else very."""
    sureness = LOOKS.get(min(len(one.rates), len(other.rates)), VERY_SURE)
    ratio = ratio_of(one.rates, other.rates, sureness)
    return ratio.middle > ALIKE and ratio.low > 1.0


def is_likely(both: list[Entry]) -> bool:
    """Whether what was found is faster by more than 5 %, as nine of ten such duels would say.

    On a machine that others use nothing may ever be beyond noise. What leaves results as they are is taken all
    the same: if it was noise, nothing is lost.
    """
    ratio = ratio_of(both[1].rates, both[0].rates, LIKELY)
    return ratio.low > 1.0 and ratio.middle > ENOUGH
