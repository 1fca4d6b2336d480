"""How sure a ratio is: rates of two settings, measured in turn, in; their ratio with a 95 % interval out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

_T = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)
"""97.5 % quantiles of Student's t for 1, 2, 3, ... degrees of freedom."""
_NORMAL = 1.96


@dataclass(frozen=True)
class Interval:
    """A median, and between what the truth lies in 95 of 100 cases."""

    middle: float
    low: float
    high: float


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """ours / theirs, round by round: what disturbs a whole round disturbs no ratio. Rates are positive."""
    return spread_of([a / b for a, b in zip(ours, theirs, strict=False)])


def spread_of(values: Sequence[float]) -> Interval:
    """Positive numbers of one kind; of a single one nothing is sure."""
    logs = [math.log(value) for value in values]
    middle = median(values)
    if len(logs) < 2:
        return Interval(middle, 0.0, math.inf)
    freedom = len(logs) - 1
    quantile = _T[freedom - 1] if freedom <= len(_T) else _NORMAL
    half = quantile * stdev(logs) / math.sqrt(len(logs))
    mean = fmean(logs)
    return Interval(middle, math.exp(mean - half), math.exp(mean + half))
