"""Watch: the training thread of one process: which phase it is in, and a row for each span of it."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from flatout.doctor.child.log import Row, RowLog

FLUSH_S = 5.0
"""What a process that is killed may lose."""
MANY_ROWS = 20_000
"""In memory, some 5 MB: they are written whenever there are so many, whatever the script is doing."""
MAX_ROWS = 2_000_000
"""In the file: from here on spans are no longer written down."""
SPANS = frozenset(("own", "copy", "forward", "backward", "optimiser", "sync", "log", "next", "iter"))
"""Rows that come by the thousand."""


class Watch:
    """What the patches share. Spans of other threads than the training one are left alone."""

    def __init__(self) -> None:
        self.is_on = False
        self.was_stopped = False
        self.log = RowLog(Path(), "events")
        self.add: Callable[[Row], None] = self.log.add
        self.stack: list[str] = []
        """Phases that the training thread is in, the innermost last."""
        self.thread = threading.main_thread().ident
        self.own_s = 0.0
        """Seconds that the doctor itself took in the training thread, on purpose: clones, flushes, trials."""
        self.own_cpu_s = 0.0
        self.num_rows = 0
        self.is_collecting = False
        self._flushed_at = perf_counter()
        self._pid = os.getpid()

    def begin(self, folder: Path) -> None:
        """Rows go to `folder` from here on."""
        self.log = RowLog(folder, "events")
        self.is_on = True
        self._pid = os.getpid()
        self.collect()

    def collect(self) -> None:
        """Keep all rows from here on; a row takes 0.1 us."""
        self.num_rows, self.is_collecting = 0, True
        rows, append, most = self.log.rows, self.log.add, MANY_ROWS

        def add(row: Row) -> None:
            append(row)
            if len(rows) >= most:
                self._flush_early()

        self.add = add if not self.log.is_lost else self._add_rare

    def hold(self) -> None:
        """Keep no spans: nobody trains here yet, and a worker of a loader never will."""
        self.is_collecting = False
        self.add = self._add_rare

    def _add_rare(self, row: Row) -> None:
        if row[0] not in SPANS:
            self.log.add(row)

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
        """Write down what there is. If that is impossible, or enough, steps are still counted, but not kept."""
        self.num_rows += len(self.log.rows)
        self.log.flush()
        self._flushed_at = perf_counter()
        if self.num_rows > MAX_ROWS or self.log.is_lost:
            self.add = self._add_rare

    def _flush_early(self) -> None:
        with Own(self):
            self.flush()


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
