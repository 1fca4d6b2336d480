"""`flatout bench tune`: what tuning reaches of the best setting, and in what part of the time.

The best is found by one race of all settings there are, which ends by the rule that the races of tuning end by,
but leaves nobody out. It is then raced against what tuning found anew: who was lucky in the search has no
advantage.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from flatout.bench import machine
from flatout.bench.tune_workloads import WORKLOADS, Workload
from flatout.config import load_config
from flatout.doctor.tune.interval import ratio_of
from flatout.doctor.tune.options import TuneOptions
from flatout.doctor.tune.process import Trials
from flatout.doctor.tune.race import MOST_ROUNDS, Entry, Measure, in_turn, is_clear
from flatout.doctor.tune.run import Tuned, tune
from flatout.doctor.tune.setting import AS_IT_IS, ENCODINGS, Setting
from flatout.doctor.tune.space import Space
from flatout.errors import ConfigError, FlatoutError

DEPTHS = (1, 2, 4, 8, 16)
FINAL_ROUNDS = 12


@dataclass(frozen=True)
class TuneBench:
    """What to measure, and how thoroughly."""

    workloads: tuple[str, ...] = tuple(WORKLOADS)
    budget_s: float = 60.0
    """Of one tuning."""
    rounds: int = MOST_ROUNDS
    """The most that the exhaustive search measures each setting."""
    share: float = 1.0
    """Share of the samples; below 1 only for a quick look."""
    most_workers: int | None = None
    """More are not tried by the exhaustive search; None: what tuning itself would try."""
    scratch: Path | None = None


def bench_tune(options: TuneBench, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Measure; a document of plain numbers out.

    Raises:
        ConfigError: a workload does not exist.
        FlatoutError: one cannot be measured.
    """
    if unknown := set(options.workloads) - set(WORKLOADS):
        raise ConfigError(f"no workload '{unknown.pop()}'; there are: {', '.join(WORKLOADS)}")
    watch, found = machine.CpuWatch(), {}
    scratch = Path(tempfile.mkdtemp(prefix="flatout-bench-", dir=options.scratch))
    try:
        for name in options.workloads:
            found[name] = _measure(name, WORKLOADS[name], scratch / name, options, say)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return {
        "workloads": found,
        "lowest_reached": min(each["reached"] for each in found.values()),
        "highest_time_share": max(each["time_share"] for each in found.values()),
        "others": watch.others(),
        "machine": machine.describe(),
    }


def _measure(
    name: str, workload: Workload, folder: Path, options: TuneBench, say: Callable[[str], None]
) -> dict[str, Any]:
    config = workload.make(folder, options.share)
    limits = TuneOptions(budget_s=options.budget_s, cpu_budget=1.0, allow=workload.allow)
    tuned = tune(config, options=limits, say=lambda text: say(f"{name}: {text}"))
    started = time.monotonic()
    memory_bytes = int(limits.memory_budget * tuned.facts.free_bytes)
    with Trials(load_config(config, environ={}), memory_bytes) as trials:
        trials.facts()
        trials.probe(min(0.5, options.budget_s / 20))
        settings = every_setting(Space(tuned.facts, tuned.service, memory_bytes, workload.allow), options)
        on_sample = "encoding" in workload.allow
        measure = partial(trials.run, seconds=tuned.slice_s, on_sample=on_sample)
        entries = try_all(settings, measure, options.rounds, lambda text: say(f"{name}: {text}"))
        exhaustive_s = time.monotonic() - started
        measured = [entry for entry in entries if entry.failure is None]
        best = max(measured, key=lambda entry: entry.rate)
        finalists = [tuned.start, best.setting, tuned.setting]
        final = try_all(finalists, measure, FINAL_ROUNDS, lambda text: None, ends_early=False)
    return _document(tuned, best, final, entries, exhaustive_s)


def every_setting(space: Space, options: TuneBench) -> list[Setting]:
    """Everything that tuning may come to, whether it would try it or not."""
    facts, start = space.facts, space.facts.start
    most = space.most_workers if options.most_workers is None else options.most_workers
    shapes = [(0, 1), *product(range(1, most + 1), DEPTHS)]
    caches = ("none",) if facts.is_fast else ("none", "memory")
    others = [name for name in ENCODINGS if name != facts.form] if "encoding" in space.allowed else []
    factors = (0.5, 1, 2, 4) if "batch_size" in space.allowed else (1,)
    sizes = {max(1, int(start.batch_size * factor)) for factor in factors}
    found = [
        start.changed(num_workers=n, prefetch_factor=d, cache=cache, encoding=encoding, batch_size=size)
        for (n, d), cache, encoding, size in product(shapes, caches, (AS_IT_IS, *others), sorted(sizes))
    ]
    return [setting for setting in dict.fromkeys(found) if space.fits(setting)]


def try_all(
    settings: list[Setting],
    measure: Measure,
    rounds: int,
    say: Callable[[str], None],
    *,
    ends_early: bool = True,
) -> list[Entry]:
    """Every setting in every round.

    Args:
        rounds: the most.
        ends_early: when each is known to be slower than the fastest, or about as fast.

    Raises:
        FlatoutError: none could be measured.
    """
    entries = [Entry(setting) for setting in dict.fromkeys(settings)]
    for number in range(rounds):
        for entry in in_turn(entries, number):
            if entry.failure is None:
                entry.measure(measure)
        live = [entry for entry in entries if entry.failure is None]
        if not live:
            raise FlatoutError(f"no setting could be measured: {entries[0].failure}")
        say(f"exhaustive search, round {number + 1}: {len(live)} settings")
        if ends_early and is_clear(live):
            break
    return entries


def _document(
    tuned: Tuned, best: Entry, final: list[Entry], entries: list[Entry], exhaustive_s: float
) -> dict[str, Any]:
    by_setting = {entry.setting: entry for entry in final}
    ours, theirs, before = (by_setting[s] for s in (tuned.setting, best.setting, tuned.start))
    for entry in (ours, theirs, before):
        if entry.failure is not None:
            raise FlatoutError(f"{entry.setting} could not be measured again: {entry.failure}")
    reached = ratio_of(ours.rates, theirs.rates)
    rounds = max(len(entry.slices) for entry in entries)
    return {
        "reached": reached.middle,
        "low": reached.low,
        "high": reached.high,
        "time_share": tuned.seconds / exhaustive_s,
        "tuned_s": tuned.seconds,
        "exhaustive_s": exhaustive_s,
        "exhaustive_rounds": rounds,
        "num_settings": len(entries),
        "num_stretches": sum(len(e.slices) for stage in tuned.found.stages for e in stage.entries),
        "slice_s": tuned.slice_s,
        "start": {"setting": tuned.start.to_json(), "samples_per_s": before.rate},
        "tuned": {"setting": tuned.setting.to_json(), "samples_per_s": ours.rate},
        "best": {"setting": best.setting.to_json(), "samples_per_s": theirs.rate},
    }
