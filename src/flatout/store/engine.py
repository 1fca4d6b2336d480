"""Engines: who makes the shards. In the caller, in local worker processes, or as tasks of a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from flatout.config import Config
from flatout.source import SampleMaker
from flatout.store.column import Slabs
from flatout.store.pool import LocalPool
from flatout.store.receipt import BadRow, Receipt
from flatout.store.specify import Forms
from flatout.store.task import ShardTask, Task, TaskSetup, describe
from flatout.types import Row

FED_ROWS = 1024
"""Rows taken from the manifest at once."""
TELL_S = 0.2
"""Seconds between two reports of progress: whoever shows each row spends more on that than on a quick row."""


class Engine(Protocol):
    """Describes rows, makes shards. The bytes do not depend on which one it is."""

    def import_from(self, folders: Sequence[str]) -> None:
        """Let workers find modules in these folders, too; called once, before a job's code is sent."""

    def spread(self, function: Callable[[Any], Any], parts: Iterable[Any]) -> Iterable[Any]:
        """A function's result for each part, in order; with all processes that are at hand."""

    def describe(self, maker: SampleMaker, rows: Sequence[Row]) -> list[Forms | BadRow]:
        """The forms of each row's samples, or why it has none."""

    def run(self, setup: TaskSetup, tasks: Sequence[Task], on_rows: Callable[[int], None]) -> Iterator[Receipt]:
        """Make every task's shard; receipts come as they are finished."""


class InCaller:
    """Makes shards in this process: nothing to start, nothing protected. For debugging (`num_workers: 0`)."""

    def __enter__(self) -> InCaller:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def import_from(self, folders: Sequence[str]) -> None:
        """Nothing to do: the job has been made in this process, from these folders."""

    def spread(self, function: Callable[[Any], Any], parts: Iterable[Any]) -> Iterable[Any]:
        return map(function, parts)

    def describe(self, maker: SampleMaker, rows: Sequence[Row]) -> list[Forms | BadRow]:
        return describe(maker, rows)

    def run(self, setup: TaskSetup, tasks: Sequence[Task], on_rows: Callable[[int], None]) -> Iterator[Receipt]:
        slabs = Slabs()
        for task in tasks:
            made = ShardTask(setup, task.number, slabs=slabs)
            teller = _Teller(on_rows)
            for start in range(0, task.num_rows, FED_ROWS):
                rows = task.rows(start, min(start + FED_ROWS, task.num_rows)).rows()
                made.feed(rows, teller.look)
            teller.tell(task.num_rows)
            yield made.finish()


class _Teller:
    """Hears at which row a task is, and tells now and then how many more are done."""

    def __init__(self, on_rows: Callable[[int], None]) -> None:
        self._on_rows = on_rows
        self._told = 0
        self._last_s = time.monotonic()

    def look(self, position: int) -> None:
        if position > self._told and time.monotonic() - self._last_s > TELL_S:
            self.tell(position)

    def tell(self, num_done: int) -> None:
        self._on_rows(num_done - self._told)
        self._told, self._last_s = num_done, time.monotonic()


def make_engine(config: Config, sys_path: Sequence[str] = ()) -> AbstractContextManager[Engine]:
    """The engine that the config asks for, not started yet."""
    num_workers = count_workers(config)
    if config.engine == "ray":
        from flatout.store.cluster import RayEngine

        return RayEngine(num_workers, sys_path, config.decode_timeout_s, config.preprocess_batch_size)
    if num_workers == 0:
        return InCaller()
    return LocalPool(num_workers, sys_path, config.decode_timeout_s, config.preprocess_batch_size)


def count_workers(config: Config) -> int:
    """Processes of a prepare: as many as cores by default, or what the config says."""
    import os

    if config.num_workers == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return config.num_workers
