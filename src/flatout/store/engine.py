"""Engines: who makes the shards. In the caller, in local worker processes, or as tasks of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from flatout.config import Config
from flatout.source import SampleMaker
from flatout.store.pool import LocalPool
from flatout.store.specify import Forms
from flatout.store.task import BadRow, Receipt, ShardTask, Task, TaskSetup, describe
from flatout.types import Row

FED_ROWS = 128
"""Rows between two reports of progress."""


class Engine(Protocol):
    """Describes rows, makes shards. The bytes do not depend on which one it is."""

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

    def spread(self, function: Callable[[Any], Any], parts: Iterable[Any]) -> Iterable[Any]:
        return map(function, parts)

    def describe(self, maker: SampleMaker, rows: Sequence[Row]) -> list[Forms | BadRow]:
        return describe(maker, rows)

    def run(self, setup: TaskSetup, tasks: Sequence[Task], on_rows: Callable[[int], None]) -> Iterator[Receipt]:
        for task in tasks:
            made = ShardTask(setup, task.number)
            for start in range(0, task.num_rows, FED_ROWS):
                rows = task.rows(start, min(start + FED_ROWS, task.num_rows))
                made.feed(rows)
                on_rows(len(rows))
            yield made.finish()


def make_engine(config: Config, sys_path: Sequence[str]) -> AbstractContextManager[Engine]:
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
