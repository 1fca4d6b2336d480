"""A stretch of a loader, timed: batches taken one after the other, each put through a step."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from flatout.doctor.tune.room import check_free
from flatout.doctor.tune.step import Step, cpu_of, finish
from flatout.loader.fetch import KEY

LEAST_BATCHES = 4
"""Fewer say nothing, however long they take."""
LONGEST = 10
"""A stretch ends after this many times its length, whatever was reached."""
LOOK_S = 0.1
_SHARES = ("Pss_Anon:", "Pss_Shmem:")
"""Lines of smaps_rollup: memory divided by the processes that share it, in KiB."""


@dataclass(frozen=True)
class Timed:
    """What a stretch took after its first batches."""

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
    wave = wave_of(loader)
    step(first)
    _take(batches, step, Goal(0.0, wave - 1, 1, LONGEST * seconds))
    finish(device)
    begin, cpu_s, thread_s = time.perf_counter(), cpu_of(process), time.thread_time()
    num_batches, num_samples, wait_s = _take(
        batches, step, Goal(seconds, LEAST_BATCHES, wave, LONGEST * seconds)
    )
    finish(device)
    wall_s, thread_s = time.perf_counter() - begin, time.thread_time() - thread_s
    cpu_s, memory_bytes = cpu_of(process) - cpu_s, private_bytes(process)
    batches.close()
    return Timed(num_batches, num_samples, wall_s, wait_s, cpu_s, thread_s, memory_bytes, first_s)


def wave_of(loader: Any) -> int:
    """Batches that come at once, because as many workers began them at once.

    A stretch begins and ends between two waves. Who began it after the first batch would count the rest of the
    first wave, which were made before: with four workers three for nothing, of eight in all.
    """
    prefetching = getattr(loader, "prefetching", None)
    num_workers: int = loader.num_workers if prefetching is None else prefetching[0] + 1
    return max(1, num_workers)


class Goal(NamedTuple):
    """When enough batches were taken."""

    seconds: float
    num_batches: int
    wave: int
    """Their number is a multiple of this."""
    most_s: float
    """After this time one is enough."""

    def is_reached(self, num_batches: int, seconds: float) -> bool:
        """After so many batches and seconds."""
        if seconds >= self.most_s and num_batches:
            return True
        is_whole = num_batches % self.wave == 0
        return seconds >= self.seconds and num_batches >= self.num_batches and is_whole


def _take(batches: Generator[Any, None, None], step: Step, goal: Goal) -> tuple[int, int, float]:
    """Batches, samples, and seconds waited."""
    num_batches = num_samples = 0
    wait_s, begin = 0.0, time.perf_counter()
    now, looked = begin, begin
    while not goal.is_reached(num_batches, now - begin):
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
