"""The local engine: worker processes that make shards; a row that kills or hangs one is found and barred.

When a worker dies, the row it was at is tried alone in a fresh process. If that dies too the row is
barred, and the shard is made again without it: one bad file never costs more than its own sample. A death
that was nobody's fault (a worker killed from outside) costs only the time to make the shard again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, Queue, SimpleQueue
from typing import Any

import psutil

from flatout.errors import PrepareError
from flatout.store.process import WorkerDiedError, WorkerProcess
from flatout.store.specify import Forms
from flatout.store.task import BadRow, Receipt, Task, TaskSetup
from flatout.types import Row

WATCH_S = 0.2
IN_FLIGHT = 2
"""Requests a worker holds at once, so that it never waits for the next."""
MEMORY_SHARE = 0.8
"""Share of the free memory that all workers together may take."""
MAX_DEATHS = 3
"""Workers that one row may cost although it does no harm alone, and a shard without any row's fault."""


@dataclass
class LocalPool:
    """Worker processes on this machine. Use as a context manager."""

    num_workers: int
    sys_path: Sequence[str] = ()
    timeout_s: float = 60.0
    request_rows: int = 16
    _workers: list[WorkerProcess] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _closing: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _on_rows: Callable[[int], None] = lambda count: None

    def __enter__(self) -> LocalPool:
        free = free_memory_bytes()
        self._max_bytes = int(free * MEMORY_SHARE / self.num_workers)
        self._spare_bytes = int(free * (1 - MEMORY_SHARE))
        self._watcher = threading.Thread(target=self._watch, name="flatout-watch", daemon=True)
        self._watcher.start()
        # Started now, all together: they import their libraries while the manifest is scanned.
        self._idle: SimpleQueue[WorkerProcess] = SimpleQueue()
        try:
            for _ in range(self.num_workers):
                self._idle.put(self._hire())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:  # from here on nobody is hired
            self._closing.set()
        for worker in list(self._workers):
            worker.kill("prepare is over")
        for thread in [self._watcher, *self._threads]:
            thread.join(timeout=5.0)
        for worker in list(self._workers):
            worker.close()

    def describe(self, maker: Any, rows: Sequence[Row]) -> list[Forms | BadRow]:
        """The forms of these rows' samples, each row in safety: a crash is that row's result."""
        worker = self._take()
        found: list[Forms | BadRow] = []
        for row in rows:
            worker, forms = self._describe(worker, maker, row)
            found.append(forms)
        self._idle.put(worker)
        return found

    def _describe(self, worker: WorkerProcess, maker: Any, row: Row) -> tuple[WorkerProcess, Forms | BadRow]:
        """A row's forms, tried twice: the worker may have died for reasons of its own."""
        for is_last in (False, True):
            try:
                return worker, worker.ask("describe", maker, [row])[0]
            except WorkerDiedError as death:
                worker = self._replace(worker)
                if is_last and death.position < 0:
                    raise PrepareError(f"worker processes do not start: {death.reason}") from death
                if is_last or death.is_timeout:
                    return worker, BadRow.of(maker, row, "worker", death.reason)
        raise AssertionError("the last try returns or raises")

    def run(
        self, setup: TaskSetup, tasks: Sequence[Task], on_rows: Callable[[int], None] = lambda count: None
    ) -> Iterator[Receipt]:
        """Make every task's shard; receipts come as they are finished.

        Raises:
            PrepareError: something other than a sample failed (disk, code, config); the first error wins.
        """
        self._on_rows = on_rows
        waiting: Queue[Task] = Queue()
        results: SimpleQueue[Receipt | BaseException] = SimpleQueue()
        for task in tasks:
            waiting.put(task)
        self._threads = [
            threading.Thread(target=self._serve, args=(setup, waiting, results), daemon=True)
            for _ in range(min(self.num_workers, len(tasks)))
        ]
        for thread in self._threads:
            thread.start()
        for _ in tasks:
            result = _next(results, self._threads)
            if isinstance(result, BaseException):
                raise result
            yield result

    def _serve(self, setup: TaskSetup, waiting: Queue[Task], results: SimpleQueue[Any]) -> None:
        """One thread a worker: take tasks until none is left."""
        try:
            worker = self._take()
            while not self._closing.is_set():
                try:
                    task = waiting.get_nowait()
                except Empty:
                    break
                worker, receipt = self._finish(worker, setup, task)
                results.put(receipt)
            self._idle.put(worker)
        except BaseException as error:
            results.put(error)

    def _finish(self, worker: WorkerProcess, setup: TaskSetup, task: Task) -> tuple[WorkerProcess, Receipt]:
        """Make one shard, however often it takes; the worker may be another one afterwards."""
        barred: dict[str, BadRow] = {}
        deaths: Counter[int] = Counter()
        while True:
            tally = _Tally(self._advance)
            try:
                return worker, self._attempt(worker, setup, task, barred, tally, careful=bool(deaths))
            except WorkerDiedError as death:
                tally.take_back()
                worker = self._replace(worker)
                deaths[death.position] += 1
                if death.position >= 0:
                    row = task.rows(death.position, death.position + 1)[0]
                    worker, reason = self._blame(worker, setup, row, death, deaths[death.position])
                    if reason is not None:
                        barred[row.key] = BadRow.of(setup.maker, row, "worker", reason)
                elif deaths[death.position] == MAX_DEATHS:
                    raise PrepareError(
                        f"shard {task.number}: {MAX_DEATHS} workers died between its rows; {death.reason}"
                    ) from death

    def _attempt(
        self,
        worker: WorkerProcess,
        setup: TaskSetup,
        task: Task,
        barred: dict[str, BadRow],
        tally: _Tally,
        *,
        careful: bool,
    ) -> Receipt:
        """Careful: row by row, so that a worker's death after a row (its pipe closed) is that row's."""
        if worker.setup is not setup:
            worker.ask("setup", setup)
            worker.setup = setup
        worker.ask("start", task.number, dict(barred))
        step, most = (1, 1) if careful else (self.request_rows, IN_FLIGHT)
        in_flight = 0
        for start in range(0, task.num_rows, step):
            try:
                worker.post("rows", task.rows(start, min(start + step, task.num_rows)))
                in_flight += 1
                if in_flight == most:
                    tally.add(worker.wait())
                    in_flight -= 1
            except WorkerDiedError as death:
                if careful and death.position < 0:
                    death.position = start
                raise
        for _ in range(in_flight):
            tally.add(worker.wait())
        return worker.ask("finish")  # type: ignore[no-any-return]

    def _blame(
        self, worker: WorkerProcess, setup: TaskSetup, row: Row, death: WorkerDiedError, num_deaths: int
    ) -> tuple[WorkerProcess, str | None]:
        """Why the row is barred: it was too slow, kills a worker alone, too, or has cost too many; or None."""
        if death.is_timeout or num_deaths == MAX_DEATHS:
            return worker, death.reason
        try:
            worker.ask("describe", setup.maker, [row])
            return worker, None
        except WorkerDiedError as alone:
            return self._replace(worker), alone.reason

    def _take(self) -> WorkerProcess:
        return self._idle.get()

    def _hire(self) -> WorkerProcess:
        with self._lock:
            if self._closing.is_set():
                raise PrepareError("prepare is over")
            worker = WorkerProcess(self.sys_path, self.timeout_s, self._max_bytes)
            self._workers.append(worker)
            return worker

    def _replace(self, worker: WorkerProcess) -> WorkerProcess:
        worker.close()
        self._workers.remove(worker)
        return self._hire()

    def _advance(self, count: int) -> None:
        with self._lock:  # whoever watches is told by one thread at a time
            self._on_rows(count)

    def _watch(self) -> None:
        while not self._closing.wait(WATCH_S):
            is_short = free_memory_bytes() < self._spare_bytes
            for worker in list(self._workers):
                worker.watch(is_short)


def free_memory_bytes() -> int:
    """What processes may still take before the machine swaps or kills one."""
    return int(psutil.virtual_memory().available)


class _Tally:
    """Rows reported during one attempt, taken back if it fails."""

    def __init__(self, on_rows: Callable[[int], None]) -> None:
        self._on_rows = on_rows
        self._count = 0

    def add(self, count: int) -> None:
        self._count += count
        self._on_rows(count)

    def take_back(self) -> None:
        self._on_rows(-self._count)


def _next(results: SimpleQueue[Any], threads: Sequence[threading.Thread]) -> Any:
    """The next result; every wait has an end, and leaves room for Ctrl-C."""
    while True:
        try:
            return results.get(timeout=WATCH_S)
        except Empty:
            if not any(thread.is_alive() for thread in threads):
                with suppress(Empty):
                    return results.get_nowait()
                raise PrepareError("the worker threads ended without a result") from None
