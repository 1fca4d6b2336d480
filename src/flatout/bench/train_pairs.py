"""Pairs of short rounds, store against resident batches, in several processes that each do both.

A machine that others share changes its speed by a tenth from one second to the next, and processes of the same
code differ by 3 to 5 %: so both sides share a process and take turns about each second, over the very same
batches, and the median of many pairs counts. What the store's producers do comes in bursts, which a median of
short rounds passes over. So the CPU seconds that they took are added, all of them: a model that trains on the
processor leaves no core free for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from flatout.bench.train_contestant import Entry
from flatout.bench.train_process import Contestant
from flatout.bench.train_rounds import Asked, Figures
from flatout.errors import FlatoutError

NUM_PROCESSES = 5
NUM_WARM = 2
"""Steps before the timed ones of a round: the first may be over a batch that the round before made ahead."""
LEAST_STEPS, MOST_STEPS = 4, 16
"""Timed ones of a round ..."""
ROUND_S = 0.7
"""... which lasts about so long."""
PAIRS_SHARE = 6.0
"""Rounds of `seconds` that all pairs of a process together have time for."""
LEAST_PAIRS, MOST_PAIRS = 4, 60


class Pair(NamedTuple):
    """Two rounds over the same batches, one soon after the other."""

    fast: Figures
    resident: Figures


Pairs = list[list[Pair]]
"""Of each process its pairs."""


def run_pairs(entry: Entry, seconds: float, say: Callable[[str], None]) -> Pairs:
    """Processes one after the other, each with as many pairs as it has time for.

    Args:
        entry: of an alternating contestant.

    Raises:
        FlatoutError: one failed, or the two sides had different samples.
    """
    found: Pairs = []
    for number in range(NUM_PROCESSES):
        with Contestant("fast and resident", entry.to_json()).running() as contestant:
            steps, num_pairs = plan_pairs(max(map(step_s, _pair(contestant, LEAST_STEPS))), seconds)
            pairs = [_pair(contestant, steps) for _ in range(num_pairs)]
        if any(pair.fast["keys"] != pair.resident["keys"] for pair in pairs):
            raise FlatoutError("the two sides of a pair of rounds had different samples")
        found.append(pairs)
        share = 1 / times_as_long([pairs], is_on_cores=entry.accelerator_ms is None)
        say(f"  process {number + 1} of {NUM_PROCESSES}: {share:.3f} of resident")
    return found


def plan_pairs(step_s: float, seconds: float) -> tuple[int, int]:
    """Timed steps of a round, and how many pairs a process has time for."""
    steps = max(LEAST_STEPS, min(MOST_STEPS, int(ROUND_S / step_s)))
    pair_s = 2 * (NUM_WARM + steps) * step_s
    return steps, max(LEAST_PAIRS, min(MOST_PAIRS, int(PAIRS_SHARE * seconds / pair_s)))


def times_as_long(found: Pairs, *, is_on_cores: bool) -> float:
    """A step from the store in resident ones: the median of all pairs, and what producers took.

    Args:
        is_on_cores: the model takes all of them; an accelerator leaves them to the producers.
    """
    pairs = [pair for own in found for pair in own]
    wall_s, producers_s = (sum(float(pair.fast[name]) for pair in pairs) for name in ("wall_s", "producers_s"))
    taken = producers_s / wall_s if is_on_cores else 0.0
    return median(step_s(pair.fast) / step_s(pair.resident) for pair in pairs) + taken


def rate(figures: Figures) -> float:
    """Samples a second."""
    return float(figures["samples"] / figures["wall_s"])


def step_s(figures: Figures) -> float:
    """Seconds a step."""
    return float(figures["wall_s"] / figures["steps"])


def _pair(contestant: Contestant, steps: int) -> Pair:
    asked = Asked(steps=steps, num_warm=NUM_WARM)
    return Pair(contestant.run(asked), contestant.run(replace(asked, is_resident=True)))
