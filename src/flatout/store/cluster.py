"""The Ray engine: one Ray task a shard, on whatever machines the cluster has. Same code, same bytes.

The store's folder and the sources must be reachable under the same paths from every machine. Ray runs a task
again when its machine dies; a row that kills its worker is left to the local pool, which finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flatout.errors import MissingDependencyError
from flatout.source import SampleMaker
from flatout.store.pool import LocalPool
from flatout.store.specify import Forms
from flatout.store.task import BadRow, Receipt, ShardTask, Task, TaskSetup
from flatout.types import Row

MAX_WAITING = 4
"""Tasks handed to Ray beyond one a worker: enough to keep it busy, few enough to hold their rows."""


@dataclass
class RayEngine:
    """Makes shards as Ray tasks; connects to the running cluster, or starts one here."""

    num_workers: int
    sys_path: Sequence[str] = ()
    timeout_s: float = 60.0
    request_rows: int = 16

    def __enter__(self) -> RayEngine:
        try:
            import ray
        except ImportError as error:
            raise MissingDependencyError(
                "engine ray needs the package ray; it comes with: pip install 'flatout[ray]'"
            ) from error
        self._ray = ray
        self._owns_cluster = not ray.is_initialized()
        if self._owns_cluster:
            _connect(ray, max(self.num_workers, 1))
        self._local = LocalPool(1, self.sys_path, self.timeout_s, self.request_rows)
        self._local.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self._local.__exit__(*details)
        if self._owns_cluster:
            self._ray.shutdown()

    def describe(self, maker: SampleMaker, rows: Sequence[Row]) -> list[Forms | BadRow]:
        return self._local.describe(maker, rows)

    def run(self, setup: TaskSetup, tasks: Sequence[Task], on_rows: Callable[[int], None]) -> Iterator[Receipt]:
        """Receipts as they are finished; a task whose worker keeps dying is made here instead."""
        remote = self._ray.remote(num_cpus=1, max_retries=1)(_make_shard)
        shared = self._ray.put(setup)
        waiting: dict[Any, Task] = {}
        queue = list(reversed(tasks))
        most = self._num_cpus() + MAX_WAITING
        while queue or waiting:
            while queue and len(waiting) < most:
                task = queue.pop()
                rows = task.rows(0, task.num_rows)
                waiting[remote.remote(shared, task.number, rows, list(self.sys_path))] = task
            ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=1.0)
            for reference in ready:
                yield self._receipt(reference, waiting.pop(reference), setup, on_rows)

    def _receipt(self, reference: Any, task: Task, setup: TaskSetup, on_rows: Callable[[int], None]) -> Receipt:
        try:
            receipt: Receipt = self._ray.get(reference)
        except self._ray.exceptions.WorkerCrashedError:
            return next(iter(self._local.run(setup, [task], on_rows)))
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        on_rows(task.num_rows)
        return receipt

    def _num_cpus(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))


def _make_shard(setup: TaskSetup, number: int, rows: Sequence[Row], sys_path: Sequence[str]) -> Receipt:
    import sys

    for folder in reversed(sys_path):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    task = ShardTask(setup, number)
    task.feed(rows)
    return task.finish()


def _connect(ray: Any, num_workers: int) -> None:
    """Join the cluster that RAY_ADDRESS or `ray start` names, else start one on this machine."""
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="error")
    except ConnectionError:
        # No dashboard: its port would be open to whoever reaches this machine.
        ray.init(
            num_cpus=num_workers,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            _node_ip_address="127.0.0.1",
        )
