"""What prepare costs beside the work itself: efficiency, safety, workers' memory, a run with nothing to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from flatout.bench.job import Job, run, run_together
from flatout.bench.own import largest_shard
from flatout.bench.sources import SourceFiles

Say = Callable[[str], None]
SPARE_BYTES = 100_000_000
"""What a worker may take beside one shard and two samples."""


@dataclass(frozen=True)
class Setting:
    """Where and how long to measure."""

    scratch: Path
    num_workers: int
    seconds: float
    rounds: int
    say: Say


def whole_passes(files: SourceFiles, num_rows: float) -> int:
    """About so many rows, but every file equally often."""
    return max(1, round(num_rows / len(files.paths))) * len(files.paths)


def cpu_per_row(case: str, files: SourceFiles, setting: Setting, num_rows: int, num_at_once: int = 1) -> float:
    """Processor seconds of decoding and transforming a row, in one process; or the mean of several at once."""
    job = replace(make_job("decode", case, files, setting, num_rows), num_workers=0)
    jobs = [replace(job, out=f"{job.out}-{number}") for number in range(num_at_once)]
    try:
        outcomes = run_together(jobs)
        return mean(float(outcome.figures["cpu_s"]) for outcome in outcomes) / num_rows
    finally:
        for each in jobs:
            shutil.rmtree(each.out, ignore_errors=True)


def bare_s(case: str, files: SourceFiles, setting: Setting, num_rows: int, *, is_safe: bool) -> float:
    """Wall seconds of the same work and the same bytes on disk with nothing around them; see `plan_bare`."""
    job = replace(make_job("bare", case, files, setting, num_rows), is_safe=is_safe)
    parts = range(setting.num_workers)
    jobs = [replace(job, out=f"{job.out}-{at}", part=(at, setting.num_workers)) for at in parts]
    try:
        return max(float(outcome.figures["seconds"]) for outcome in run_together(jobs))
    finally:
        for each in jobs:
            shutil.rmtree(each.out, ignore_errors=True)


def make_job(what: str, case: str, files: SourceFiles, setting: Setting, num_rows: int) -> Job:
    """A job over `num_rows` rows, its output in the scratch folder."""
    manifest = files.write_manifest(setting.scratch / f"{case}-{num_rows}.csv", num_rows)
    out = setting.scratch / f"{what}-{case}"
    return Job(what, case, str(manifest), str(files.base), str(out), setting.num_workers)


def measure_efficiency(case: str, files: SourceFiles, setting: Setting) -> dict[str, Any]:
    """(decode and transform CPU seconds of one process / workers) / wall, over jobs of `seconds` each.

    The single process runs before and after each prepare, and its mean counts: the speed of a core drifts by a
    tenth and more within a minute (the clock, or neighbours on the same machine).

    `limit` is what the work itself reaches: cores that are busy at the same time share caches, memory and the
    clock's turbo, so that the same decoding takes more processor time in `num_workers` processes at once.
    `bare` is what is left of that if the results are written and synced, by processes that do nothing else, and
    `required` if they also look at each file, check and hash what they write, as a store that can be trusted
    and brought up to date asks for.
    """
    for _ in range(2):  # the first time files are fetched from the disk, at twice the processor time
        guess = cpu_per_row(case, files, setting, whole_passes(files, 500))
    num_rows = whole_passes(files, setting.seconds * setting.num_workers / guess)
    job = make_job("prepare", case, files, setting, num_rows)
    rounds = []
    for number in range(setting.rounds):
        num_decoded = whole_passes(files, num_rows / 8)
        shutil.rmtree(job.out, ignore_errors=True)
        before = cpu_per_row(case, files, setting, num_decoded)
        outcome = run(job)
        after = cpu_per_row(case, files, setting, num_decoded)
        cpu_s = mean([before, after]) * num_rows
        busy_s = cpu_per_row(case, files, setting, num_decoded, setting.num_workers) * num_rows
        bare, required = (
            cpu_s / setting.num_workers / bare_s(case, files, setting, num_rows, is_safe=is_safe)
            for is_safe in (False, True)
        )
        wall_s = outcome.figures["seconds"]
        found = {
            "cpu_s_around": [before * num_rows, after * num_rows],
            "cpu_s": cpu_s,
            "wall_s": wall_s,
            "efficiency": cpu_s / setting.num_workers / wall_s,
            "limit": cpu_s / busy_s,
            "bare": bare,
            "required": required,
        }
        rounds.append(
            {
                **found,
                "others": outcome.others,
                "peak": outcome.figures["peak"],
                "stages": outcome.figures["stages"],
            }
        )
        setting.say(
            f"efficiency {case}, round {number + 1}: {found['efficiency']:.3f} ({wall_s:.1f} s), "
            f"the work alone {found['limit']:.3f}, written by bare processes {bare:.3f}, checked and "
            f"hashed as well {required:.3f}"
        )
    return {
        "efficiency": median(each["efficiency"] for each in rounds),
        # Bounds: of the best round, as one that was disturbed would flatter us.
        **{bound: max(each[bound] for each in rounds) for bound in ("limit", "bare", "required")},
        "rows": num_rows,
        "bytes_out": outcome.figures["bytes_out"],
        "rounds": rounds,
        "worker_memory": _worker_memory(Path(job.out), max(each["peak"] for each in rounds)),
        "unchanged_s": run(job).figures["seconds"],
        "scan_rows_per_s": num_rows / run(replace(job, what="scan")).figures["seconds"],
    }


def _worker_memory(out: Path, peak: int) -> dict[str, Any]:
    """The largest worker against what is allowed above an idle one."""
    shard, sample = largest_shard(out)
    idle = run(Job("idle")).figures["idle_bytes"]
    limit = shard + 2 * sample + SPARE_BYTES
    return {
        "idle_bytes": idle,
        "peak_bytes": peak,
        "above_idle_bytes": peak - idle,
        "limit_bytes": limit,
        "shard_bytes": shard,
        "is_within": peak - idle <= limit,
    }


def measure_safety(case: str, files: SourceFiles, setting: Setting, cpu_s_per_row: float) -> dict[str, Any]:
    """What fsync, hashes and crcs add to a prepare, as a share of one without them.

    A round is one without, two with, one without, or the other way round: a speed that drifts steadily meets
    both alike. The median of the rounds' own ratios counts, not that of runs minutes apart.
    """
    num_rows = whole_passes(files, setting.seconds / 2 * setting.num_workers / cpu_s_per_row)
    job = make_job("prepare", case, files, setting, num_rows)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    rounds = []
    for number in range(setting.rounds):
        outer = bool(number % 2)
        for is_safe in (outer, not outer, not outer, outer):
            shutil.rmtree(job.out, ignore_errors=True)
            seconds[is_safe].append(run(replace(job, is_safe=is_safe)).figures["seconds"])
        rounds.append(sum(seconds[True][-2:]) / sum(seconds[False][-2:]) - 1)
        setting.say(f"safety {case}, round {number + 1}: {rounds[-1]:+.1%}")
    shutil.rmtree(job.out, ignore_errors=True)
    return {
        "overhead": median(rounds),
        "rounds": rounds,
        "rows": num_rows,
        "safe_s": seconds[True],
        "unsafe_s": seconds[False],
    }
