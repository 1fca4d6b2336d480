"""Records made up for the rules: a loader and a training loop, simulated batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flatout.doctor.record import Ceiling, DoctorRecord, Exit, LoaderFacts, Step

GIB = 1 << 30
MACHINE = {
    "system": "linux",
    "num_cores": 4,
    "memory_bytes": 16 * GIB,
    "free_bytes": 12 * GIB,
    "shared_bytes": 8 * GIB,
    "gpu": None,
}
LOADER = LoaderFacts(
    name="train",
    num_workers=0,
    batch_size=16,
    prefetch_factor=None,
    persistent_workers=False,
    pin_memory=False,
    start_method=None,
    is_iterable=False,
    num_samples=4000,
    dataset="train.Images",
    batch_bytes=1 << 20,
    seconds={},
    cpu_seconds=None,
    slowest=1.5,
    padding_share=None,
    worker_starts=0,
)


def simulate(makes_s: Sequence[float], compute_s: float, num_workers: int, prefetch: int = 2) -> list[float]:
    """Seconds that the training thread waits for each batch; batches come in order, workers take turns."""
    if num_workers == 0:
        return list(makes_s)
    now, waits = 0.0, []
    free = [0.0] * num_workers
    taken: list[float] = []
    for number, make_s in enumerate(makes_s):
        ahead = number - num_workers * prefetch
        asked = taken[ahead] if ahead >= 0 else 0.0
        worker = number % num_workers
        free[worker] = max(free[worker], asked) + make_s
        waits.append(max(0.0, free[worker] - now))
        now += waits[-1]
        taken.append(now)
        now += compute_s
    return waits


def made_record(
    *,
    compute_s: float = 0.02,
    stages: Mapping[str, float] | None = None,
    num_workers: int = 0,
    cpu_share: float = 1.0,
    extra: Mapping[str, float] | None = None,
    makes_s: Sequence[float] | None = None,
    loader: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    machine: Mapping[str, Any] | None = None,
    num_steps: int = 200,
) -> DoctorRecord:
    """A record of a training whose batches take `stages` seconds and whose steps compute for `compute_s`."""
    stages = stages or {"fetch": 0.001, "prepare": 0.001, "collate": 0.001}
    make_s = sum(stages.values())
    waits = simulate(makes_s or [make_s] * num_steps, compute_s, num_workers)
    extra = extra or {}
    own = {"forward": 0.3 * compute_s, "backward": 0.6 * compute_s, "optimiser": 0.1 * compute_s}
    steps = tuple(Step(0.0, {"wait": wait, **own, **extra}) for wait in waits)
    mean_s = sum(sum(step.seconds.values()) for step in steps) / len(steps)
    facts_of_loader = {
        "num_workers": num_workers,
        "prefetch_factor": 2 if num_workers else None,
        "worker_starts": num_workers,
        "seconds": stages,
        "cpu_seconds": cpu_share * make_s,
        **(loader or {}),
    }
    return DoctorRecord(
        script="train.py",
        arguments=(),
        exit=Exit(0, was_stopped=True),
        steps=steps,
        num_warmup=5,
        loaders=(replace(LOADER, **facts_of_loader),),
        ceiling=ceiling_of(mean_s, compute_s + sum(extra.values()), make_s / max(num_workers, 1)),
        facts={"num_threads": 4, "device": "cpu", "loader_cpu_wait_s": 0.0, **(facts or {})},
        machine={**MACHINE, **(machine or {})},
    )


def ceiling_of(step_s: float, resident_s: float, loader_s: float | None) -> Ceiling:
    gain = step_s / resident_s
    return Ceiling(step_s, resident_s, loader_s, low=0.97 * gain, high=1.03 * gain)


def scaled(record: DoctorRecord, factor: float) -> DoctorRecord:
    """The same on a machine that takes `factor` times as long for everything."""

    def grown(seconds: Mapping[str, float]) -> dict[str, float]:
        return {name: factor * value for name, value in seconds.items()}

    loaders = tuple(
        replace(
            each,
            seconds=grown(each.seconds),
            cpu_seconds=None if each.cpu_seconds is None else factor * each.cpu_seconds,
            functions=tuple(replace(f, seconds_per_batch=factor * f.seconds_per_batch) for f in each.functions),
        )
        for each in record.loaders
    )
    ceiling = record.ceiling
    if ceiling is not None:
        alone = None if ceiling.loader_batch_s is None else factor * ceiling.loader_batch_s
        ceiling = replace(
            ceiling,
            step_s=factor * ceiling.step_s,
            resident_step_s=factor * ceiling.resident_step_s,
            loader_batch_s=alone,
        )
    steps = tuple(replace(step, seconds=grown(step.seconds)) for step in record.steps)
    facts = {name: _grown_fact(name, value, factor) for name, value in record.facts.items()}
    return replace(record, steps=steps, loaders=loaders, ceiling=ceiling, facts=facts)


def _grown_fact(name: str, value: Any, factor: float) -> Any:
    if isinstance(value, Mapping):
        return {key: _grown_fact(key, inner, factor) for key, inner in value.items()}
    is_time = name.endswith("_s") or name in (
        "seconds_per_step",
        "wait",
        "forward",
        "backward",
        "optimiser",
        "other",
    )
    return factor * value if is_time and value is not None else value
