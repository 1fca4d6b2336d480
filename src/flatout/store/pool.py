"""The local engine: worker processes that make shards, each with a thread here that hands it tasks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, Queue, SimpleQueue
from typing import Any

import psutil

from flatout.errors import PrepareError
from flatout.store.cgroup import read_limits
from flatout.store.line import Line
from flatout.store.process import WorkerDiedError, WorkerProcess
from flatout.store.receipt import BadRow, Receipt
from flatout.store.specify import Forms
from flatout.store.task import Task, TaskSetup
from flatout.types import Row

WATCH_S = 0.2
PARTS_AHEAD = 4
"""Parts of shared work a worker that are made before the first of their results is taken."""
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
    _threads: list[threading.Thread] = field(default_factory=list)
    _closing: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _on_rows: Callable[[int], None] = lambda count: None

    def __enter__(self) -> LocalPool:
        self._share_memory()
        self._watcher = threading.Thread(target=self._watch, name="flatout-watch", daemon=True)
        self._watcher.start()
        # Started now, all together: they import their libraries while the manifest is read.
        self._idle: SimpleQueue[WorkerProcess] = SimpleQueue()
        try:
            for _ in range(self.num_workers):
                self._idle.put(self._hire())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        for thread in [self._watcher, *self._threads]:
            thread.join(timeout=5.0)
        for worker in list(self._workers):
            worker.close()

    def _stop(self) -> None:
        """End every worker now; whoever waits for its answer goes on."""
        with self._lock:  # from here on nobody is hired
            self._closing.set()
        for worker in list(self._workers):
            worker.kill("prepare is over")

    def _share_memory(self) -> None:
        """Give each worker an equal part of what is free now."""
        free = free_memory_bytes()
        self._max_bytes = int(free * MEMORY_SHARE / self.num_workers)
        self._spare_bytes = int(free * (1 - MEMORY_SHARE))
        for worker in self._workers:
            worker.max_bytes = self._max_bytes

    @contextmanager
    def _asking(self, num_threads: int) -> Iterator[ThreadPoolExecutor]:
        """Threads that ask workers; after Ctrl-C they do not wait for a slow row's answer."""
        with ThreadPoolExecutor(num_threads) as threads:
            try:
                yield threads
            except BaseException:
                self._stop()
                raise

    def import_from(self, folders: Sequence[str]) -> None:
        self._share_memory()  # anew: the manifest has its part by now
        self.sys_path = folders
        for worker in self._workers if folders else ():
            worker.import_from(folders)

    def spread(self, function: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[Any]:
        """A function's result for each part, in order, worked out by all workers together.

        It must be one that a worker can import, and is called here for a part whose worker dies.
        """

        def call(part: Any) -> Any:
            worker = self._take()
            try:
                return worker.ask("call", function, part)
            except WorkerDiedError:
                worker = self._replace(worker)
                return function(part)
            finally:
                self._idle.put(worker)

        under_way: deque[Future[Any]] = deque()
        with self._asking(self.num_workers) as threads:
            try:
                for part in parts:  # each made here, while workers are at those before it
                    under_way.append(threads.submit(call, part))
                    if len(under_way) == PARTS_AHEAD * self.num_workers:
                        yield under_way.popleft().result()
                while under_way:
                    yield under_way.popleft().result()
            finally:
                for future in under_way:
                    future.cancel()

    def describe(self, maker: Any, rows: Sequence[Row]) -> list[Forms | BadRow]:
        """The forms of these rows' samples, each row in safety: a crash is that row's result.

        Every worker gets some of them, so that all import their libraries now, at the same time.
        """
        num_lines = min(self.num_workers, len(rows))
        found: dict[int, Forms | BadRow] = {}

        def probe(first: int) -> None:
            worker = self._take()
            for at in range(first, len(rows), num_lines):
                worker, found[at] = self._describe(worker, maker, rows[at])
            self._idle.put(worker)

        with self._asking(max(num_lines, 1)) as threads:
            list(threads.map(probe, range(num_lines)))
        return [found[at] for at in range(len(rows))]

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
            line = Line(self._take(), setup, self.request_rows, self._replace, self._advance, results.put)
            while not self._closing.is_set():
                try:
                    task = waiting.get_nowait()
                except Empty:
                    break
                line.make(task)
            line.settle()
            self._idle.put(line.worker)
        except BaseException as error:
            results.put(error)

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
    """What processes may still take before the machine, or the container around them, swaps or kills one."""
    on_machine = int(psutil.virtual_memory().available)
    in_container = read_limits().free_bytes
    return on_machine if in_container is None else min(on_machine, in_container)


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
