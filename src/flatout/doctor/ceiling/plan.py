"""What happens after the observed steps: blocks of steps with the loader and with resident batches, in turns.

The script is as good as stopped by then: its results are those of the steps before. What it still writes holds
weights and losses of replayed batches; `flatout.doctor.patches.files` notes such files, and the record warns of
each. It is not told that an epoch ended any more, or it might end itself.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, pstdev
from time import perf_counter
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from flatout.doctor.ceiling.beside import BesideSource
from flatout.doctor.ceiling.here import device_of, measure_parts
from flatout.doctor.ceiling.sent import sent_source
from flatout.doctor.ceiling.shorter import CallSource, measure_shorter, padded_batches
from flatout.doctor.ceiling.sources import LoaderSource, ResidentSource, Source, keep_batches
from flatout.doctor.ceiling.threads import OneThreadSource
from flatout.doctor.child.watch import WATCH

LEAST_ROUNDS, MOST_ROUNDS = 3, 6
SERIES_S = 25.0
"""What one series of blocks may take, if the least number of rounds allows it."""
BLOCK_S = 0.3
"""A block lasts at least this long, so that the clock and single hiccups do not matter."""
LEAST_STEPS, MOST_STEPS = 3, 128
LEAST_SKIPPED = 1
"""Steps before a block that are not measured, where steps are slow."""
NUM_SOURCES, MOST_SOURCES = 4, 100
"""Those that a ceiling is told from, and more than are ever tried."""
BLOCK_ERROR = 0.15
"""How sure the mean of a block of uneven steps should be ..."""
UNEVEN_S = 1.5
"""... if it takes no longer than this."""
SHORT_EPOCH = 40
"""Epochs of fewer steps are measured whole: what happens between two of them belongs to a step ..."""
EPOCH_S = 5.0
"""... unless they last longer: a dozen blocks of slow steps took four minutes, what is between is little."""
THREAD_ROUNDS, THREADS_S = range(50, 54), 12.0
"""Rounds, by numbers that no other series has, with one thread; none where they would take longer than this."""
DRAIN_S = 2.0
NUM_STARTS, STARTS_S = 3, 4.0
"""Epochs that are begun to see what that takes, if there is time: spawned workers import torch."""
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
    round: int = 0


def is_distributed() -> bool:
    """Several ranks train together: all of them must change sources at the same step."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def unevenness(starts: Sequence[float]) -> float:
    """Standard deviation of steps that began then, in means; 0 of fewer than three."""
    seconds = [end - start for start, end in pairwise(starts)]
    return pstdev(seconds) / max(fmean(seconds), 1e-9) if len(seconds) > 1 else 0.0


def block_steps(step_s: float, num_workers: int, epoch_steps: int | None, uneven: float = 0.0) -> int:
    """Steps of one block: whole rounds of the workers, whole short epochs, and long enough to measure.

    A slow sample or an evaluation once in a while must come in each block about as often as in all.
    """
    if is_distributed():
        return 8
    step_s = max(step_s, 1e-6)
    steady = min(math.ceil((uneven / BLOCK_ERROR) ** 2), math.ceil(UNEVEN_S / step_s))
    wanted = min(max(math.ceil(BLOCK_S / step_s), LEAST_STEPS, num_workers, steady), MOST_STEPS)
    epoch = epoch_steps or 0
    unit = epoch if 0 < epoch <= SHORT_EPOCH and epoch * step_s <= EPOCH_S else max(num_workers, 1)
    return math.ceil(wanted / unit) * unit


def sources_in_time(step_s: float, limit_s: float) -> int:
    """Sources whose blocks of one step, the least number of rounds, end in time; one alone is of no use."""
    if is_distributed():
        return MOST_SOURCES
    fitting = _most_s(limit_s) / (LEAST_ROUNDS * (1 + LEAST_SKIPPED) * max(step_s, 1e-6))
    return int(min(fitting, MOST_SOURCES))


def steps_in_time(step_s: float, num_steps: int, num_sources: int, limit_s: float) -> int:
    """Steps of a block, fewer than `num_steps` where the least number of rounds would not end in time."""
    if is_distributed():
        return num_steps
    fitting = _most_s(limit_s) / (LEAST_ROUNDS * num_sources * max(step_s, 1e-6)) - LEAST_SKIPPED
    return int(min(num_steps, max(1, fitting)))


def _most_s(limit_s: float) -> float:
    """A short time limit is meant for the steps that are looked at: a usual series may end."""
    return max(limit_s, SERIES_S)


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
    skipped = max(source.num_ahead, 2)
    if skipped * step_s <= DRAIN_S or is_distributed():
        return skipped
    for _ in range(source.num_ahead):
        source.next()
    return LEAST_SKIPPED


def ceiling_blocks(
    base: LoaderSource,
    step_s: float,
    num_steps: int,
    loader: DataLoader[Any],
    optimiser: Any,
    limit_s: float,
) -> Iterator[Block]:
    """The loader and resident batches in turns, the latter also beside a busy process; then the parts.

    Steps that are so slow that all this would last longer than the time limit make shorter blocks, then without
    the busy process, then none: the ceiling is told from the waits.
    """
    most = sources_in_time(step_s, limit_s)
    if most < 2:
        return
    kept = keep_batches(base)
    sources: list[Source] = [base, ResidentSource(kept)]
    has_time = most >= NUM_SOURCES and not is_distributed()
    sent = sent_source(base, loader, kept) if has_time else None
    if has_time:
        sources += [BesideSource(kept), *([sent] if sent else [])]
    base.settle()
    num_steps = steps_in_time(step_s, num_steps, len(sources), limit_s)
    yield from in_turns(sources, num_steps, step_s, range(num_rounds(step_s, num_steps, len(sources))))
    if sent:
        sent.close()
    if has_time and torch.get_num_threads() > 1 and device_of(optimiser).type == "cpu":
        yield from _thread_blocks(kept, step_s)
    WATCH.add(("alone", *_alone(base)))
    if not is_distributed():
        has_epochs = base.num_starts or not isinstance(loader.dataset, IterableDataset)  # a stream may not end
        if loader.num_workers and not loader.persistent_workers and has_epochs:
            _start_anew(base)
        base.settle()
        yield from part_blocks(base, loader, kept, optimiser)


def _thread_blocks(kept: list[Any], step_s: float) -> Iterator[Block]:
    """All threads and one in turns: beside other programs two were 30 times as slow as one."""
    num_steps = max(LEAST_STEPS, min(math.ceil(BLOCK_S / step_s), MOST_STEPS))
    sources = [ResidentSource(kept), OneThreadSource(kept)]
    if len(THREAD_ROUNDS) * len(sources) * (num_steps + 2) * step_s <= THREADS_S:
        yield from in_turns(sources, num_steps, step_s, THREAD_ROUNDS)


def _start_anew(base: LoaderSource) -> None:
    """Begin some epochs: of many steps the blocks may not have seen the end of any, and one start is none."""
    end = perf_counter() + STARTS_S
    for _ in range(NUM_STARTS):
        base.settle()  # as at the end of an epoch: a worker that is busy ends what it makes before it ends
        base.begin_anew(perf_counter())
        if perf_counter() > end:
            break


def part_blocks(
    base: LoaderSource, loader: DataLoader[Any], kept: list[Any], optimiser: Any
) -> Iterator[Block]:
    """What the parts of a batch cost one by one; of a padded one also what shorter ones would."""
    WATCH.add(("measured", measure_parts(base, loader, kept[0], optimiser)))
    if padded := padded_batches(kept):
        source = CallSource(kept)
        source.begin()
        yield Block(source, 1, 1)
        source.end()
        WATCH.add(("measured", measure_shorter(padded)))


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
