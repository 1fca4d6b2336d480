"""Watch: the training thread of one process: which phase it is in, and a row for each span of it."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from flatout.doctor.child.log import RowLog

FLUSH_S = 5.0
"""What a process that is killed may lose."""
MAX_ROWS = 2_000_000
"""With --full: from here on steps are no longer written down."""


class Watch:
    """What the patches share. Spans of other threads than the training one are left alone."""

    def __init__(self) -> None:
        self.is_on = False
        self.was_stopped = False
        self.log = RowLog(Path(), "events")
        self.add = self.log.add
        self.stack: list[str] = []
        """Phases that the training thread is in, the innermost last."""
        self.thread = threading.main_thread().ident
        self.own_s = 0.0
        """Seconds that the doctor itself took in the training thread, on purpose: clones, flushes, trials."""
        self.own_cpu_s = 0.0
        self.num_rows = 0
        self._flushed_at = perf_counter()
        self._pid = os.getpid()

    def begin(self, folder: Path) -> None:
        """Rows go to `folder` from here on."""
        self.log = RowLog(folder, "events")
        self.add = self.log.add
        self.is_on = True
        self._pid = os.getpid()

    def forget(self) -> None:
        """In a forked child: nothing of the parent's is written twice, and nobody trains here."""
        self.is_on = False
        self.log.rows.clear()
        self.stack.clear()

    def is_here(self) -> bool:
        """Whether the caller is the training thread under observation."""
        return self.is_on and threading.get_ident() == self.thread

    def is_due(self) -> bool:
        """Whether it is time to write down what there is."""
        return perf_counter() - self._flushed_at > FLUSH_S

    def flush(self) -> None:
        """Write down what there is."""
        self.num_rows += len(self.log.rows)
        self.log.flush()
        self._flushed_at = perf_counter()
        if self.num_rows > MAX_ROWS or self.log.is_lost:
            self.is_on = False


class Own:
    """A `with` block of the doctor's own work: its seconds are taken out of the step."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __enter__(self) -> Own:
        self._cpu = process_time()
        self._start = perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        end = perf_counter()
        self._watch.own_s += end - self._start
        self._watch.own_cpu_s += process_time() - self._cpu
        self._watch.add(("own", self._start, end))


WATCH = Watch()
"""The one of this process; patches of classes have nowhere else to keep it."""


def timed(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, with a row for each call in the training thread; about 1 us a call."""
    watch, stack, clock, identify = WATCH, WATCH.stack, perf_counter, threading.get_ident

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not watch.is_on or identify() != watch.thread:
            return function(*args, **kwargs)
        stack.append(phase)
        start = clock()
        try:
            return function(*args, **kwargs)
        finally:
            watch.add((phase, start, clock()))
            if stack:
                stack.pop()

    return call
