"""The local engine: worker processes that make shards; a row that kills or hangs one is found and barred.

When a worker dies, the row it was at is tried alone in a fresh process. If that dies too the row is
barred, and the shard is made again without it: one bad file never costs more than its own sample.
"""

from __future__ import annotations

import threading
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


@dataclass
class LocalPool:
    """Worker processes on this machine. Use as a context manager."""

    num_workers: int
    sys_path: Sequence[str] = ()
    timeout_s: float = 60.0
    request_rows: int = 16
    _workers: list[WorkerProcess] = field(default_factory=list)
    _closing: threading.Event = field(default_factory=threading.Event)
    _on_rows: Callable[[int], None] = lambda count: None

    def __enter__(self) -> LocalPool:
        self._max_bytes = int(psutil.virtual_memory().available * MEMORY_SHARE / self.num_workers)
        self._watcher = threading.Thread(target=self._watch, name="flatout-watch", daemon=True)
        self._watcher.start()
        # Started now, all together: they import their libraries while the manifest is scanned.
        self._idle: SimpleQueue[WorkerProcess] = SimpleQueue()
        for _ in range(self.num_workers):
            self._idle.put(self._hire())
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        for worker in list(self._workers):
            worker.kill("prepare is over")
            worker.close()
        self._watcher.join()

    def describe(self, maker: Any, rows: Sequence[Row]) -> list[Forms | BadRow]:
        """The forms of these rows' samples, each row in safety: a crash is that row's result."""
        worker = self._take()
        found: list[Forms | BadRow] = []
        for row in rows:
            try:
                found += worker.ask("describe", maker, [row])
            except WorkerDiedError as death:
                found.append(BadRow(row.key, maker.path_of(row), "worker", death.reason))
                worker = self._replace(worker)
        self._idle.put(worker)
        return found

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
        threads = [
            threading.Thread(target=self._serve, args=(setup, waiting, results), daemon=True)
            for _ in range(min(self.num_workers, len(tasks)))
        ]
        for thread in threads:
            thread.start()
        for _ in tasks:
            result = _next(results, threads)
            if isinstance(result, BaseException):
                raise result
            yield result

    def _serve(self, setup: TaskSetup, waiting: Queue[Task], results: SimpleQueue[Any]) -> None:
        """One thread a worker: take tasks until none is left."""
        try:
            worker = self._take()
            worker.ask("setup", setup)
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
        suspects: set[str] = set()
        while True:
            tally = _Tally(self._on_rows)
            try:
                return worker, self._attempt(worker, task, barred, tally)
            except WorkerDiedError as death:
                if self._closing.is_set():
                    raise
                tally.take_back()
                worker = self._replace(worker)
                if death.position < 0:
                    raise PrepareError(
                        f"a worker died between rows, in shard {task.number}: {death.reason}"
                    ) from death
                row = task.rows(death.position, death.position + 1)[0]
                reason: str | None = death.reason
                if not death.is_timeout and row.key not in suspects:
                    suspects.add(row.key)
                    worker, reason = self._try_alone(worker, setup, row)
                if reason is not None:
                    barred[row.key] = BadRow(row.key, setup.maker.path_of(row), "worker", reason)
                worker.ask("setup", setup)

    def _attempt(self, worker: WorkerProcess, task: Task, barred: dict[str, BadRow], tally: _Tally) -> Receipt:
        worker.ask("start", task.number, dict(barred))
        in_flight = 0
        for start in range(0, task.num_rows, self.request_rows):
            worker.post("rows", task.rows(start, min(start + self.request_rows, task.num_rows)))
            in_flight += 1
            if in_flight == IN_FLIGHT:
                tally.add(worker.wait())
                in_flight -= 1
        for _ in range(in_flight):
            tally.add(worker.wait())
        return worker.ask("finish")  # type: ignore[no-any-return]

    def _try_alone(self, worker: WorkerProcess, setup: TaskSetup, row: Row) -> tuple[WorkerProcess, str | None]:
        """Why the row kills a worker, or None if it does not when it is alone."""
        try:
            worker.ask("describe", setup.maker, [row])
            return worker, None
        except WorkerDiedError as death:
            return self._replace(worker), death.reason

    def _take(self) -> WorkerProcess:
        return self._idle.get()

    def _hire(self) -> WorkerProcess:
        worker = WorkerProcess(self.sys_path, self.timeout_s, self._max_bytes)
        self._workers.append(worker)
        return worker

    def _replace(self, worker: WorkerProcess) -> WorkerProcess:
        worker.close()
        self._workers.remove(worker)
        return self._hire()

    def _watch(self) -> None:
        while not self._closing.wait(WATCH_S):
            for worker in list(self._workers):
                worker.watch()


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
