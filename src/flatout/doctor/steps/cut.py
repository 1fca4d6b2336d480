"""Steps of a training: from one `next` of its loader to the following one, split into phases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flatout.doctor.record import Step, SyncPoint
from flatout.doctor.steps.phases import Phases
from flatout.doctor.steps.trace import Placed, Trace

MAX_SYNC_POINTS = 20
MIN_STEPS = 5
"""Measured steps without which there is no ceiling and no verdict: what ten leave behind a warm-up of five.
With fewer the warm-up is cut short as well, and what first steps do once is taken for what all of them do."""
MAX_STEPS = 5_000
"""With --full a record holds the first so many."""


@dataclass(frozen=True)
class Steps:
    """The measured steps and the stretch of time that they fill."""

    steps: tuple[Step, ...]
    num_warmup: int
    start: float
    end: float


def steps_of(trace: Trace, phases: Phases, num_warmup: int) -> Steps:
    """The observed steps without the warm-up; a script with few steps keeps the latter half of them."""
    train = trace.train_number
    until = trace.observed_until if trace.observed_until is not None else float("inf")
    begun = [each for each in trace.nexts if each.number == train and each.num_samples and each.start <= until]
    ends = [each.start for each in begun[1:]]
    if trace.observed_until is not None and begun:
        ends.append(trace.observed_until)
    pairs = list(zip(begun, ends, strict=False))
    skipped = min(num_warmup, len(pairs) // 2)
    kept = pairs[skipped:][:MAX_STEPS]
    origin = begun[0].start if begun else 0.0
    steps = tuple(
        Step(first.start - origin, phases.seconds(first.start, end), first.num_samples) for first, end in kept
    )
    return Steps(steps, skipped, kept[0][0].start if kept else 0.0, kept[-1][1] if kept else 0.0)


def with_logging(steps: Steps, share: float) -> Steps:
    """The same, with a share of the unexplained time counted as logging: a sampler saw it there."""
    if share <= 0:
        return steps
    moved = tuple(Step(step.start_s, _moved(step.seconds, share), step.num_samples) for step in steps.steps)
    return Steps(moved, steps.num_warmup, steps.start, steps.end)


def _moved(seconds: Mapping[str, float], share: float) -> dict[str, float]:
    logged = seconds["other"] * share
    return {**seconds, "log": seconds["log"] + logged, "other": seconds["other"] - logged}


def sync_points_of(trace: Trace, steps: Steps, phases: Phases) -> tuple[SyncPoint, ...]:
    """Lines of the training loop that wait for the device, the costliest first."""
    calls: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for each in inside(trace.syncs, steps):
        if each.file and not phases.is_evaluated(each.start, each.end):
            calls[each.file, each.line, each.call].append(each.end - each.start)
    number = max(1, len(steps.steps))
    points = [SyncPoint(*place, len(found) / number, sum(found) / number) for place, found in calls.items()]
    return tuple(sorted(points, key=lambda each: -each.seconds_per_step)[:MAX_SYNC_POINTS])


def inside(calls: Sequence[Placed], steps: Steps) -> list[Placed]:
    """Those that fell into the measured steps."""
    return [each for each in calls if steps.start <= each.start < steps.end]
