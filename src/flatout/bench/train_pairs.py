"""Pairs of rounds, store against resident batches, in several processes that each do both.

Processes of the same code differ by 3 to 5 %, each time in another task: so both sides share a process, and the
median of several processes counts. Inside one, whoever has the second round of a pair is faster, by up to a
third where batches have many shapes, because the first has met them: so two pairs of opposite order are one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import geometric_mean, median
from typing import NamedTuple

from flatout.bench.train_contestant import Entry
from flatout.bench.train_process import Contestant
from flatout.bench.train_rounds import Asked, Figures
from flatout.errors import FlatoutError

NUM_PROCESSES = 5
NUM_WARM = 2
"""Steps before the timed ones of a round, which begins with one batch ready."""
FIRST_STEPS = 4
"""Of the first pair, which warms up and tells how long a round takes."""
PAIR_SHARE = 4.0
"""Rounds of `seconds` that each process has time for; a pair takes two."""
LEAST_PAIRS = 6
MOST_PAIRS = 40
"""Even, as there are as many of either order."""


class Pair(NamedTuple):
    """Two rounds over the same batches, one soon after the other."""

    fast: Figures
    resident: Figures


Pairs = list[list[Pair]]
"""Of each process its pairs."""


def run_pairs(entry: Entry, steps: int, seconds: float, say: Callable[[str], None]) -> Pairs:
    """Processes one after the other, each with as many pairs as it has time for.

    Args:
        entry: of an alternating contestant.
        steps: timed ones of a round.

    Raises:
        FlatoutError: one failed, or the two sides had different samples.
    """
    found: Pairs = []
    for number in range(NUM_PROCESSES):
        with Contestant("fast and resident", entry.to_json()).running() as contestant:
            first = _pair(contestant, FIRST_STEPS, number % 2 == 0)
            num_pairs = plan_pairs([step_s(side) * steps for side in first], seconds)
            pairs = [_pair(contestant, steps, (number + at) % 2 == 1) for at in range(num_pairs)]
        if any(pair.fast["keys"] != pair.resident["keys"] for pair in pairs):
            raise FlatoutError("the two sides of a pair of rounds had different samples")
        found.append(pairs)
        say(f"  process {number + 1} of {NUM_PROCESSES}: {process_ratio(rate, pairs):.3f} of resident")
    return found


def plan_pairs(walls_s: Sequence[float], seconds: float) -> int:
    """How many pairs a process has time for, as many of either order."""
    return max(LEAST_PAIRS, min(MOST_PAIRS, 2 * int(PAIR_SHARE * seconds / sum(walls_s) / 2)))


def ratio_of(of: Callable[[Figures], float], found: Pairs) -> float:
    """The processes' median of their own ratios, store over resident."""
    return median(process_ratio(of, pairs) for pairs in found)


def process_ratio(of: Callable[[Figures], float], pairs: Sequence[Pair]) -> float:
    """The median of what two pairs of opposite order show together: what slows one round down slows both."""
    ratios = [of(pair.fast) / max(of(pair.resident), 1e-9) for pair in pairs]
    return median(geometric_mean(both) for both in zip(ratios[::2], ratios[1::2], strict=True))


def rate(figures: Figures) -> float:
    """Samples a second."""
    return float(figures["samples"] / figures["wall_s"])


def step_s(figures: Figures) -> float:
    """Seconds a step."""
    return float(figures["wall_s"] / figures["steps"])


def _pair(contestant: Contestant, steps: int, is_resident_first: bool) -> Pair:
    made = {}
    for at, is_resident in enumerate((is_resident_first, not is_resident_first)):
        asked = Asked(steps=steps, num_warm=NUM_WARM, is_resident=is_resident, is_again=at > 0)
        made[is_resident] = contestant.run(asked)
    return Pair(made[False], made[True])
