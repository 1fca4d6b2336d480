"""Meter: what one batch costs where it is made: seconds by sample, CPU, waits for a core, bytes, files."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sized
from multiprocessing.util import Finalize
from pathlib import Path
from time import perf_counter, process_time, thread_time
from typing import Any

from flatout.doctor.child.log import RowLog
from flatout.doctor.patches.files import FILES
from flatout.doctor.workers.calls import count_calls
from flatout.doctor.workers.counters import Counted, Counters
from flatout.doctor.workers.hand_over import HAND_OVER
from flatout.doctor.workers.padding import padding_of
from flatout.doctor.workers.sampler import SAMPLER

FLUSH_S, WORKER_FLUSH_S = 1.0, 0.25
"""The training process writes at its end anyway; a worker is ended by a signal, and loses no more than this."""
EARLY_FLUSHES = (4, 16, 64)
"""Batches of a worker after which it writes in any case: it may not live for long."""
MAX_ITEMS = 256
"""Samples of a batch whose seconds are written down one by one."""
LOOKED_AT = (1, 2)
"""Batches of a process, from 0, that are looked at closely: they are part of the warm-up."""
SLOW_S, EVERY = 0.002, 4
"""The kernel's counters are read for batches after one that took this long, and for every fourth otherwise."""
NOT_COUNTED = (None, None, None, None)
LOOKED = "FLATOUT_DOCTOR_LOOKED"
"""Set once close looks were made, so that workers started later do without."""


class _Process:
    """What all meters of a process share."""

    log: RowLog | None = None
    counters: Counters | None = None
    flushed_at = 0.0
    num_batches = 0
    own_s = 0.0
    """What the meters themselves took."""


def forget_process() -> None:
    """In a forked child: open the counters anew, write to a file of its own."""
    _Process.log = _Process.counters = None
    _Process.num_batches = 0


def flush_process() -> None:
    """Write the rows of this process and the samples taken meanwhile."""
    _Process.flushed_at = perf_counter()
    if _Process.log is not None:
        _Process.log.flush()
        SAMPLER.write(_Process.log.folder)


def _is_flush_due(now: float) -> bool:
    passed = now - _Process.flushed_at
    if multiprocessing.parent_process() is None:
        return passed > FLUSH_S
    return passed > WORKER_FLUSH_S or _Process.num_batches in EARLY_FLUSHES


def meters_own_s() -> float:
    """CPU seconds that the meters of this process took so far.

    Not those by the clock: with 14 busy programs on two cores they had waited for a core in between, and the
    overhead was said to be 20 % where steps were as fast without any watching.
    """
    return _Process.own_s


def _begin_process(folder: Path) -> None:
    _Process.counters, _Process.log = Counters(), RowLog(folder, "batches")
    _Process.flushed_at = perf_counter()
    if multiprocessing.parent_process() is not None:  # a worker that ends by itself flushes once more
        Finalize(None, flush_process, exitpriority=10)


class Meter:
    """Of one fetcher, that is of one worker and epoch, or of one epoch in the training thread."""

    def __init__(self, folder: Path, dataset: Any) -> None:
        self.number = -1
        """The loader's number in the training process; a worker is known by its process instead."""
        self.items_s: list[float] = []
        self.several_s: list[float] = []
        self.collate_s = 0.0
        self._folder = folder
        self._dataset = dataset
        self._num_items: int | None = None
        self._padding: tuple[float, float] | None = None
        self._draws: bool | None = None
        self.looks = False
        """Whether this batch is looked at closely."""
        self._last_s = SLOW_S
        self._watch: Any = None

    def begin(self) -> None:
        """A batch is begun."""
        entered = thread_time()
        if _Process.counters is None:
            _begin_process(self._folder)
        self.looks = _Process.num_batches in LOOKED_AT and LOOKED not in os.environ
        self.items_s, self.several_s, self.collate_s = [], [], 0.0
        self._num_items = self._padding = self._draws = None
        self._opened = FILES.num_opened
        counts = self._last_s > SLOW_S or _Process.num_batches % EVERY == 0
        self._before: Counted | None = _Process.counters.look() if counts and _Process.counters else None
        SAMPLER.begin_making(threading.get_ident())
        self._cpu = process_time()
        _Process.own_s += thread_time() - entered
        self._start = perf_counter()

    def end(self) -> None:
        """It is made, or failed: one row about it."""
        end, cpu, entered = perf_counter(), process_time(), thread_time()
        SAMPLER.end_making()
        self._last_s = end - self._start
        if _Process.counters is None or _Process.log is None:
            return
        counted = _Process.counters.look().since(self._before) if self._before else NOT_COUNTED
        own_cpu_s = SAMPLER.take_cpu_s()
        _Process.num_batches += 1
        items = [round(seconds * 1e6) for seconds in self.items_s[:MAX_ITEMS]]
        making_s = sum(self.items_s) + sum(self.several_s)
        row = (self._start, end, self.number, max(0.0, cpu - self._cpu - own_cpu_s), making_s, items)
        files = (FILES.num_opened - self._opened, FILES.last_read)
        looks = (self.looks, self._num_items, self._draws, self._padding)
        _Process.log.add((*row, self.collate_s, *counted, *files, HAND_OVER.take_packed(), *looks))
        if _is_flush_due(end):
            flush_process()
        _Process.own_s += thread_time() - entered

    def ask(self, read: Callable[[], Any]) -> Any:
        """What the dataset gives; in a few batches also whether it drew random numbers for it."""
        if not self.looks or self._draws is not None:
            return read()
        if self._watch is None:
            from flatout.loader.randomness import RandomWatch

            self._watch = RandomWatch(self._dataset)
        before = self._watch.look()
        item, calls = count_calls(read)
        self._draws = bool(self._watch.used_since(before))
        if _Process.num_batches == LOOKED_AT[0] and _Process.log is not None:
            log = RowLog(_Process.log.folder, "calls")
            log.rows.extend((*place, number) for place, number in calls.items())
            log.flush()
        return item

    def note_batch(self, items: Any, batch: Any) -> None:
        """Samples of the batch, and in a few batches its padding."""
        self._num_items = len(items) if isinstance(items, Sized) else None
        if self.looks:
            self._padding = padding_of(batch)


def looks_are_made() -> None:
    """Workers that start from here on look at nothing closely."""
    os.environ[LOOKED] = "1"
