"""How sure a ratio is: rates of two settings, measured in turn, in; their ratio with its interval out.

The middle is the pseudo-median of the logarithms (Hodges and Lehmann: the median of all pairwise means), which
one disturbed stretch in four does not move far. The interval is that of Wilcoxon's signed ranks, made of the
same pairwise means, from four values on at 80 %, six at 95 % and eight at 99 %; fewer have no such interval,
and get Student's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement, zip_longest
from statistics import fmean, median, stdev

LIKELY, SURE, VERY_SURE = 0.8, 0.95, 0.99
"""How sure an interval is; the last where one is looked at several times before it is believed."""
_T = {
    LIKELY: (3.078, 1.886, 1.638, 1.533, 1.476, 1.440),
    SURE: (12.71, 4.303, 3.182, 2.776, 2.571, 2.447),
    VERY_SURE: (63.66, 9.925, 5.841, 4.604, 4.032, 3.707),
}
"""Two-sided quantiles of Student's t for 1, 2, 3, ... degrees of freedom."""


@dataclass(frozen=True)
class Interval:
    """A pseudo-median, and between what the truth lies in 95 of 100 cases."""

    middle: float
    low: float
    high: float


def ratio_of(ours: Sequence[float], theirs: Sequence[float], sureness: float = SURE) -> Interval:
    """ours / theirs, round by round: what disturbs a whole round disturbs no ratio. Rates are positive.

    Raises:
        ValueError: they have no round in common.
    """
    return spread_of([a / b for a, b in zip(ours, theirs, strict=False)], sureness)


def spread_of(values: Sequence[float], sureness: float = SURE) -> Interval:
    """Positive numbers of one kind; of a single one nothing is sure.

    Raises:
        ValueError: there is none.
    """
    if not values:
        raise ValueError("no value: nothing was measured")
    logs = [math.log(value) for value in values]
    means = sorted((a + b) / 2 for a, b in combinations_with_replacement(logs, 2))
    low, high = _bounds(logs, means, sureness)
    return Interval(math.exp(median(means)), math.exp(low), math.exp(high) if high < math.inf else math.inf)


def _bounds(logs: Sequence[float], means: Sequence[float], sureness: float) -> tuple[float, float]:
    if len(logs) < 2:
        return -math.inf, math.inf
    if rank := _rank(len(logs), sureness):
        return means[rank - 1], means[-rank]
    half = _T[sureness][len(logs) - 2] * stdev(logs) / math.sqrt(len(logs))
    return fmean(logs) - half, fmean(logs) + half


@cache
def _rank(num: int, sureness: float) -> int:
    """Which of the sorted pairwise means of so many values bounds the truth; 0: none is that sure."""
    ways = [1]
    """How many sets of ranks have each sum."""
    for rank in range(1, num + 1):
        ways = [sum(both) for both in zip_longest(ways, [0] * rank + ways, fillvalue=0)]
    most, below, found = (1 - sureness) / 2 * 2**num, 0, 0
    while below + ways[found] <= most:
        below += ways[found]
        found += 1
    return found
