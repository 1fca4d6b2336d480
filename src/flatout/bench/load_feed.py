"""Whether a training ever waits: a simulated accelerator, a busy main thread, the first batch of an epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from statistics import median
from typing import Any

from flatout.bench.index import build
from flatout.bench.load_cases import LoadCase
from flatout.bench.machine import count_cores
from flatout.loader import FastDataLoader

MULTIPLES = (0.5, 1.0, 2.0, 4.0)
"""Step times of the simulated accelerator, in times of the limit's time per batch."""
MIN_STEP_MS = 1.0
MAIN_PYTHON_MS = (3.0, 10.0)
STEPS_S = 2.0
"""Length of one measurement."""


def measure_accelerator(
    store: Path, case: LoadCase, limit_per_s: float, wanted_ms: Sequence[float], rounds: int
) -> dict[str, Any]:
    """Utilisation of an accelerator that is busy so many ms a step and leaves the CPU free.

    `without_loader` is the same without a loader: what the loop itself takes, and other programs from it.
    """
    limit_ms = case.batch_size / limit_per_s * 1e3
    steps_ms = sorted({round(limit_ms * times, 3) for times in MULTIPLES} | {MIN_STEP_MS, *wanted_ms})
    curve = []
    for ms in steps_ms:
        step = accelerator_step(ms / 1e3)
        without = median(_busy_share(repeat({}), step) for _ in range(rounds))
        utilisation = _median_share(store, case, step, rounds)
        curve.append({"ms": ms, "utilisation": utilisation, "without_loader": without})
    least_ms = max(round(2 * limit_ms, 3), MIN_STEP_MS)  # rounded as they are
    counted = [each["utilisation"] for each in curve if each["ms"] >= least_ms]
    return {"limit_ms_per_batch": limit_ms, "curve": curve, "lowest": min(counted)}


def measure_main_python(store: Path, case: LoadCase, wanted_ms: Sequence[float], rounds: int) -> dict[str, Any]:
    """Share of the time that a training thread waits which is itself busy in Python."""
    steps_ms = sorted({*MAIN_PYTHON_MS, *wanted_ms})
    curve = [
        {"ms": ms, "wait_share": 1 - _median_share(store, case, _count_for(ms / 1e3), rounds)}
        for ms in steps_ms
    ]
    return {"curve": curve, "highest": max(each["wait_share"] for each in curve if each["ms"] >= 3)}


def measure_start(store: Path, case: LoadCase, num_epochs: int = 7) -> dict[str, float]:
    """From `iter` to the first batch, in epochs after the first."""
    loader = FastDataLoader(store, case.batch_size, shuffle=True)
    first_ms = []
    for _ in range(num_epochs):
        started = time.perf_counter()
        batches = iter(loader)
        next(batches)
        first_ms.append((time.perf_counter() - started) * 1e3)
        for _ in batches:
            pass
    loader.close()
    return {"first_epoch_ms": first_ms[0], "later_epochs_ms": median(first_ms[1:])}


def measure_many(scratch: Path, num_samples: int) -> dict[str, float]:
    """Any epoch and any resume point of a store of many tiny samples."""
    build(scratch / "many", num_samples, count_cores())
    loader = FastDataLoader(scratch / "many", 64, shuffle=True, seed=3)
    next(iter(loader))
    epochs, resumes = [], []
    for epoch, done in ((5, 0.3), (1, 0.9), (1000, 0.6)):
        started = time.perf_counter()
        loader.set_epoch(epoch)
        next(iter(loader))
        epochs.append(time.perf_counter() - started)
        started = time.perf_counter()
        loader.load_state_dict({**loader.state_dict(), "samples": int(done * num_samples) // 64 * 64})
        next(iter(loader))
        resumes.append(time.perf_counter() - started)
    loader.close()
    return {"samples": num_samples, "set_epoch_s": max(epochs), "resume_s": max(resumes)}


def _median_share(store: Path, case: LoadCase, step: Callable[[], float], rounds: int) -> float:
    return median(_loaders_share(store, case, step) for _ in range(rounds))


def _loaders_share(store: Path, case: LoadCase, step: Callable[[], float]) -> float:
    """Of a loader that runs: in its first epoch it compares checksums, in the second its buffers are new."""
    loader = FastDataLoader(store, case.batch_size, shuffle=True)
    for _ in range(2):
        for _ in loader:
            pass
    share = _busy_share(chain.from_iterable(repeat(loader)), step)
    loader.close()
    return share


def _busy_share(batches: Iterator[Any], step: Callable[[], float]) -> float:
    """Time in `step` as a share of all."""
    next(batches)
    started = time.perf_counter()
    busy_s = 0.0
    while (elapsed_s := time.perf_counter() - started) < STEPS_S:
        next(batches)
        busy_s += step()
    return busy_s / elapsed_s


def accelerator_step(seconds: float) -> Callable[[], float]:
    """A step of a simulated accelerator: busy so long, the processor free meanwhile; it gives its seconds."""

    def step() -> float:
        started = time.perf_counter()
        time.sleep(seconds)
        return time.perf_counter() - started

    return step


def _count_for(seconds: float) -> Callable[[], float]:
    """Pure Python that never lets go of the interpreter by itself."""

    def step() -> float:
        started = time.perf_counter()
        number = 0
        while time.perf_counter() - started < seconds:
            number += 1
        return time.perf_counter() - started

    return step
