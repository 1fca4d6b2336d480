"""A stretch of a loader, timed: batches taken one after the other, each put through a step."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from flatout.doctor.tune_step import Step, cpu_of, finish
from flatout.loader.fetch import KEY
from flatout.loader.machine import describe_machine

LEAST_BATCHES = 4
"""Fewer say nothing, however long they take."""
LONGEST = 10
"""A stretch ends after this many times its length, whatever was reached."""
LOOK_S = 0.1
_SHARES = ("Pss_Anon:", "Pss_Shmem:")
"""Lines of smaps_rollup: memory divided by the processes that share it, in KiB."""
RESERVE = 0.05
"""Share of the memory that must stay free during a trial."""


@dataclass(frozen=True)
class Timed:
    """What a stretch took after its first batch."""

    num_batches: int
    num_samples: int
    wall_s: float
    wait_s: float
    cpu_s: float
    """Of the process and its workers."""
    thread_s: float
    """CPU seconds of the thread that takes the batches."""
    memory_bytes: int
    first_s: float
    """Wait for the first batch: threads or processes start."""


def time_loader(loader: Any, seconds: float, step: Step) -> Timed:
    """Take batches for so long, epoch after epoch.

    Raises:
        MemoryError: the machine's memory is nearly used up.
        ValueError: an epoch has no batch.
    """
    if not len(loader):
        raise ValueError("an epoch has no batch: fewer samples than a batch, and drop_last")
    device, process = getattr(step, "device", None), psutil.Process()
    started = time.perf_counter()
    batches = endless(loader)
    first = next(batches)
    first_s = time.perf_counter() - started
    step(first)
    finish(device)
    begin, cpu_s, thread_s = time.perf_counter(), cpu_of(process), time.thread_time()
    num_batches, num_samples, wait_s = _take(batches, step, seconds)
    finish(device)
    wall_s, thread_s = time.perf_counter() - begin, time.thread_time() - thread_s
    cpu_s, memory_bytes = cpu_of(process) - cpu_s, private_bytes(process)
    batches.close()
    return Timed(num_batches, num_samples, wall_s, wait_s, cpu_s, thread_s, memory_bytes, first_s)


def _take(batches: Generator[Any, None, None], step: Step, seconds: float) -> tuple[int, int, float]:
    """Batches, samples, and seconds waited."""
    num_batches = num_samples = 0
    wait_s, begin = 0.0, time.perf_counter()
    now, looked = begin, begin
    while now - begin < seconds or (num_batches < LEAST_BATCHES and now - begin < LONGEST * seconds):
        batch = next(batches)
        wait_s += time.perf_counter() - now
        step(batch)
        num_batches += 1
        num_samples += len(batch[KEY])
        now = time.perf_counter()
        if now - looked > LOOK_S:
            looked = now
            check_free()
    return num_batches, num_samples, wait_s


def check_free() -> None:
    """Stop before the system, or the container's limit, has to kill somebody.

    Raises:
        MemoryError: hardly any memory is left.
    """
    machine = describe_machine(look_for_gpu=False)
    if machine.free_bytes < RESERVE * machine.memory_bytes:
        raise MemoryError(f"less than {RESERVE:.0%} of the machine's memory is left")


def private_bytes(process: psutil.Process) -> int:
    """Memory of a process and its workers without mapped files; what they share counts once (Linux)."""
    total = 0
    for each in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error, OSError):
            total += _own_bytes(each)
    return total


def _own_bytes(process: psutil.Process) -> int:
    rollup = Path(f"/proc/{process.pid}/smaps_rollup")
    if not rollup.exists():
        return int(process.memory_full_info().uss)
    shares = (line.split() for line in rollup.read_text().splitlines() if line.startswith(_SHARES))
    return sum(1024 * int(words[1]) for words in shares)


def endless(loader: Any) -> Generator[Any, None, None]:
    """Its batches, epoch after epoch."""
    while True:
        yield from loader
