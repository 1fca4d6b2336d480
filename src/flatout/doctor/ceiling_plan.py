"""What happens after the observed steps: blocks of steps with the loader and with resident batches, in turns.

The script is as good as stopped by then: nothing that it computes from here on is kept by anybody, so replayed
batches change none of its results. It is not told that an epoch ended any more, or it might end itself.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time

from flatout.doctor.ceiling_batches import tensors_of
from flatout.doctor.ceiling_sources import LoaderSource, ResidentSource, Source, keep_batches
from flatout.doctor.child_watch import WATCH

LEAST_ROUNDS, MOST_ROUNDS = 3, 6
SERIES_S = 25.0
"""What one series of blocks may take, if the least number of rounds allows it."""
BLOCK_S = 0.3
"""A block lasts at least this long, so that the clock and single hiccups do not matter."""
LEAST_STEPS, MOST_STEPS = 3, 64
SHORT_EPOCH = 40
"""Epochs of fewer steps are measured whole: what happens between two of them belongs to a step."""
DRAIN_S = 2.0
ALONE_S = 1.5
"""The loader alone is measured for this long ..."""
ALONE_BATCHES = (3, 60)
"""... but at least, and at most, so many batches."""


@dataclass
class Block:
    """Steps in a row with one source, measured after `num_skipped` of them."""

    source: Source
    num_steps: int
    num_skipped: int = 0
    is_measured: bool = True
    round: int = 0


def is_distributed() -> bool:
    """Several ranks train together: all of them must change sources at the same step."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def block_steps(step_s: float, num_workers: int, epoch_steps: int | None) -> int:
    """Steps of one block: whole rounds of the workers, whole short epochs, and long enough to measure."""
    if is_distributed():
        return 8
    wanted = min(max(math.ceil(BLOCK_S / max(step_s, 1e-6)), LEAST_STEPS, num_workers), MOST_STEPS)
    unit = epoch_steps if epoch_steps and epoch_steps <= SHORT_EPOCH else max(num_workers, 1)
    return math.ceil(wanted / unit) * unit


def num_rounds(step_s: float, num_steps: int, num_sources: int) -> int:
    """Rounds of blocks: more make the interval narrower, slow steps make them dear."""
    if is_distributed():
        return LEAST_ROUNDS
    round_s = num_sources * (num_steps + 2) * step_s
    return int(min(max(SERIES_S / round_s, LEAST_ROUNDS), MOST_ROUNDS))


def in_turns(sources: Sequence[Source], num_steps: int, step_s: float, rounds: range) -> Iterator[Block]:
    """Blocks of all sources, round after round; what was made ahead meanwhile is used up first."""
    for number in rounds:
        for source in sources:
            source.begin()
            yield Block(source, num_steps, used_up_first(source, step_s), round=number)
            source.end()
            source.settle()


def used_up_first(source: Source, step_s: float) -> int:
    """Steps before a block that only use up prefetched batches; slow ones are thrown away instead."""
    if source.num_ahead * step_s <= DRAIN_S or is_distributed():
        return max(source.num_ahead, 2)
    for _ in range(source.num_ahead):
        source.next()
    return 1


def ceiling_blocks(base: LoaderSource, step_s: float, epoch_steps: int | None) -> Iterator[Block]:
    """The loader and resident batches in turns, then the loader alone."""
    resident = ResidentSource(keep_batches(base))
    workers = getattr(base.iterator, "_num_workers", 0)
    base.settle()
    steps = block_steps(step_s, workers, epoch_steps)
    yield from in_turns([base, resident], steps, step_s, range(num_rounds(step_s, steps, 2)))
    WATCH.add(("alone", *_alone(base)))
    if not workers:
        WATCH.add(("hand_over", _share_seconds(base)))


def _alone(base: LoaderSource) -> tuple[float, int]:
    """Seconds and number of batches, as fast as the loader gives them to nobody."""
    end = perf_counter() + DRAIN_S
    for _ in range(base.num_ahead):
        if perf_counter() < end:
            base.next()
    seconds, number, least, most = 0.0, 0, *ALONE_BATCHES
    while number < most and (number < least or seconds < ALONE_S):
        starts, start = base.num_starts, perf_counter()
        base.next()
        if base.num_starts == starts:  # the start of an epoch is not what a batch takes
            seconds += perf_counter() - start
            number += 1
        elif perf_counter() > end + 5 * ALONE_S:
            break
    return seconds, number


def _share_seconds(base: LoaderSource) -> float:
    """What a copy of one batch into shared memory takes: the way that a worker's batch would go."""
    times = []
    for _ in range(3):
        batch = base.next()
        start = process_time()
        for tensor in tensors_of(batch):
            if tensor.device.type == "cpu":
                tensor.detach().clone().share_memory_()  # type: ignore[no-untyped-call]
        times.append(process_time() - start)
    return min(times)
