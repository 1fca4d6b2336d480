"""Rounds: a training that runs when it is told to and stands still in between, each round with its figures."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import psutil
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from flatout.bench.train_module import MeasuredTask
from flatout.store.checks import crc32c
from flatout.train.waits import Waits
from flatout.types import Array

Figures = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What the next round is."""

    steps: int = 0
    """Timed steps; 0: as many as `seconds` take."""
    seconds: float = 0.0
    """0 of both: the training ends."""
    is_whole: bool = False
    """The first step is timed, too, and what stands before it."""
    num_warm: int = 1
    """Steps before the timed ones."""
    is_resident: bool = False
    """Batches come from memory, where a contestant can do both."""
    is_again: bool = False
    """Over the batches of the round before."""

    @property
    def is_end(self) -> bool:
        return not self.steps and not self.seconds


Exchange = Callable[[Figures], Asked]
"""The figures of the round that is over in, the next round out; it may take long."""


class Rounds(Callback):
    """Stands still after each round. The first steps of a round, which warm up, are not timed.

    Args:
        before: called with a round before it begins, untimed; what is resident is filled then.
    """

    def __init__(
        self,
        exchange: Exchange,
        waits: Waits,
        task: MeasuredTask,
        before: Callable[[Asked], None] | None = None,
    ) -> None:
        self._exchange, self._waits, self._task = exchange, waits, task
        self._before = before or (lambda asked: None)
        self._asked = Asked()
        self._num_warm = 0
        self._started: _Sums | None = None
        """None: a round has not begun, or is still warming up."""
        self._steps_ns: list[int] = []
        self._num_samples = 0
        self._keys: list[Array] = []
        self._epoch_starts: list[int] = []
        self._peak_bytes = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Everything is built; wait for the first round."""
        self._next(trainer, {"num_batches": trainer.num_training_batches})

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the step; after the last of a round answer, and wait for the next."""
        if self._started is None:
            self._num_warm += 1
            if self._num_warm >= self._asked.num_warm:
                self._start()
            return
        self._steps_ns.append(time.perf_counter_ns())
        self._num_samples += len(batch["key"])
        self._keys.append(batch["key"].cpu().numpy())
        if batch_idx == 0:
            self._epoch_starts.append(len(self._steps_ns) - 1)
        if self._is_over():
            _wait_for_device()
            self._steps_ns[-1] = time.perf_counter_ns()
            self._next(trainer, self._figures(self._started))

    def _start(self) -> None:
        self._steps_ns, self._num_samples, self._keys, self._epoch_starts = [], 0, [], []
        _wait_for_device()
        self._started = self._sums()  # the clock is read last

    def _is_over(self) -> bool:
        if self._asked.steps:
            return len(self._steps_ns) >= self._asked.steps
        assert self._started is not None
        return (self._steps_ns[-1] - self._started.clock_ns) / 1e9 >= self._asked.seconds

    def _next(self, trainer: Trainer, figures: Figures) -> None:
        self._asked = self._exchange(figures)
        self._started, self._num_warm = None, 0
        trainer.should_stop = self._asked.is_end
        if not self._asked.is_end:
            self._before(self._asked)
            if self._asked.is_whole:
                self._start()

    def _sums(self) -> _Sums:
        cpu_s = cpu_seconds()
        return _Sums(
            cpu_s, self._waits.total_ns, self._task.augment_ns, self._task.busy_s, time.perf_counter_ns()
        )

    def _figures(self, started: _Sums) -> Figures:
        wall_s = (self._steps_ns[-1] - started.clock_ns) / 1e9
        now = self._sums()
        self._peak_bytes = max(self._peak_bytes, memory_bytes())
        edges = [started.clock_ns, *self._steps_ns]
        return {
            "steps": len(self._steps_ns),
            "samples": self._num_samples,
            "wall_s": wall_s,
            "step_s": [(b - a) / 1e9 for a, b in pairwise(edges)],
            "wait_s": (now.wait_ns - started.wait_ns) / 1e9,
            "augment_s": (now.augment_ns - started.augment_ns) / 1e9,
            "busy_s": now.busy_s - started.busy_s,
            "cpu_s": now.cpu_s - started.cpu_s,
            "peak_rss_bytes": self._peak_bytes,
            "device_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0,
            "epoch_starts": self._epoch_starts,
            "keys": crc32c(np.concatenate(self._keys)),
        }


@dataclass(frozen=True)
class _Sums:
    """What has been added up until now."""

    cpu_s: float
    wait_ns: int
    augment_ns: int
    busy_s: float
    clock_ns: int


def cpu_seconds() -> float:
    """CPU time of this process, of its workers, and of workers that have ended."""
    used = time.process_time()
    if sys.platform != "win32":
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        used += ended.ru_utime + ended.ru_stime
    for worker in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            times = worker.cpu_times()
            used += times.user + times.system
    return used


def memory_bytes() -> int:
    """Resident memory of this process at its peak, and of its workers now; shared pages count in each."""
    if sys.platform == "win32":
        total = int(psutil.Process().memory_info().peak_wset)
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        total = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    for worker in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            total += int(worker.memory_info().rss)
    return total


def _wait_for_device() -> None:
    """What a GPU still has to do belongs to the round; nowhere else is it waited for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
