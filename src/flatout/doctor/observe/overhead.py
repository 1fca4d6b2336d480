"""measure_overhead: what watching costs a script, by running it watched and barely watched in turns."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from flatout.doctor.observe.run import observe
from flatout.doctor.observe.settings import ObserveSettings
from flatout.doctor.record import DoctorRecord
from flatout.errors import FlatoutError


def measure_overhead(
    script: Path, arguments: Sequence[str] = (), *, num_steps: int = 60, num_rounds: int = 3
) -> float:
    """Watched step over barely watched step, minus one: 0.01 is one per cent.

    Barely watched means that only steps are counted. Of each run the median step counts, and of several
    rounds the quickest: on a machine with other tenants that is the one that they disturbed least.

    Raises:
        FlatoutError: the script has too few steps to compare.
    """
    watched = ObserveSettings(num_steps=num_steps, measures_ceiling=False)
    bare = replace(watched, is_bare=True)
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(num_rounds):
        for settings in (bare, watched):
            record = observe(script, None, arguments, settings, stdout=subprocess.DEVNULL)
            times[settings.is_bare].append(_median_step(script, record))
    return min(times[False]) / min(times[True]) - 1.0


def _median_step(script: Path, record: DoctorRecord) -> float:
    if len(record.steps) < 10:
        why = f":\n{record.exit.error}" if record.exit.error else ""
        raise FlatoutError(f"{script} made {len(record.steps)} steps; 10 are needed to tell an overhead{why}")
    return median(sum(step.seconds.values()) for step in record.steps)
