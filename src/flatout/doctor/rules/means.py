"""What a row of steps comes to: means by phase, and what single long waits add to them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flatout.doctor.record import PHASES, DoctorRecord, Step


def mean_seconds(steps: Sequence[Step]) -> dict[str, float]:
    """Mean seconds by phase; the mean and not the median, because what comes once in a while counts."""
    total = dict.fromkeys(PHASES, 0.0)
    for step in steps:
        for phase, seconds in step.seconds.items():
            total[phase if phase in total else "other"] += seconds if math.isfinite(seconds) else 0.0
    return {phase: seconds / max(len(steps), 1) for phase, seconds in total.items()}


def long_run_seconds(record: DoctorRecord) -> dict[str, float]:
    """The same of a step in the long run: what workers take to start comes once an epoch, seen or not."""
    found = mean_seconds(record.steps)
    unseen_s = record.facts.get("unseen_start_s")
    if isinstance(unseen_s, int | float):  # a record from elsewhere may hold anything
        found["wait"] = max(0.0, found["wait"] + unseen_s)
    return found


def wait_share_of(record: DoctorRecord) -> float | None:
    """Part of a step in the long run that is waiting for data; None without steps."""
    seconds = long_run_seconds(record)
    total_s = sum(seconds.values())
    return seconds["wait"] / total_s if total_s > 0 else None


def samples_per_s_of(record: DoctorRecord) -> float | None:
    """Samples a second in the long run, as the wait is told; None where batches were not counted."""
    total_s = len(record.steps) * sum(long_run_seconds(record).values())
    num_samples = sum(step.num_samples or 0 for step in record.steps)
    return num_samples / total_s if num_samples and total_s > 0 else None


def outlying_s(waits: Sequence[float], number: int) -> float:
    """What the longest `number` waits take above the median, spread over all steps."""
    if not waits or number <= 0:
        return 0.0
    ordered = sorted(waits)
    median = ordered[len(ordered) // 2]
    return sum(wait - median for wait in ordered[-min(number, len(ordered)) :]) / len(waits)
