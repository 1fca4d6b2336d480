"""The Ray engine: one Ray task a shard, on whatever machines the cluster has. Same code, same bytes.

The store's folder and the sources must be reachable under the same paths from every machine. Each Ray worker
has a process of its own for the decoding, as the local engine has, so a row that crashes or hangs is found in
the same way. Ray runs a task again when its machine dies; what fails then, too, is made here, and so is a
task of which nothing is heard for longer than its rows may take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from flatout.errors import MissingDependencyError, PrepareError
from flatout.source import SampleMaker
from flatout.store.pool import LocalPool
from flatout.store.receipt import BadRow, Receipt
from flatout.store.specify import Forms
from flatout.store.task import Task, TaskSetup
from flatout.types import Row, RowBlock

MAX_WAITING = 4
"""Tasks handed to Ray beyond one a worker: enough to keep it busy, few enough to hold their rows."""
MIN_PATIENCE_S = 60.0
"""A Ray worker may have to start and to import its libraries first, whatever a row may take."""


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

    def import_from(self, folders: Sequence[str]) -> None:
        self.sys_path = folders
        self._local.import_from(folders)

    def spread(self, function: Callable[[Any], Any], parts: Iterable[Any]) -> Iterable[Any]:
        return self._local.spread(function, parts)

    def describe(self, maker: SampleMaker, rows: Sequence[Row]) -> list[Forms | BadRow]:
        return self._local.describe(maker, rows)

    def run(self, setup: TaskSetup, tasks: Sequence[Task], on_rows: Callable[[int], None]) -> Iterator[Receipt]:
        """Receipts as they are finished; a task whose worker keeps dying is made here instead."""
        remote = self._ray.remote(num_cpus=1, max_retries=1)(_make_shard)
        shared = self._ray.put(setup)
        waiting: dict[Any, Task] = {}
        queue = list(reversed(tasks))
        most = self._num_cpus() + MAX_WAITING
        heard_at = monotonic()
        while queue or waiting:
            while queue and len(waiting) < most:
                task = queue.pop()
                rows = task.rows(0, task.num_rows)
                how = (tuple(self.sys_path), self.timeout_s, self.request_rows)
                waiting[remote.remote(shared, task.number, rows, *how)] = task
            ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=1.0)
            for reference in ready:
                yield self._receipt(reference, waiting.pop(reference), setup, on_rows)
            late = [] if ready else self._late(waiting, monotonic() - heard_at)
            for reference in late:
                self._ray.cancel(reference, force=True)
            for reference in late:
                yield self._make_here(waiting.pop(reference), setup, on_rows)
            if ready or late:
                heard_at = monotonic()

    def _late(self, waiting: Mapping[Any, Task], quiet_s: float) -> list[Any]:
        """Tasks that should have come by now, though every row took all the time it may.

        Counted from the last receipt of any task, since Ray does not say when it starts one: while others
        come, a task may still be in Ray's queue.
        """
        patience = {ref: max(MIN_PATIENCE_S, self.timeout_s * task.num_rows) for ref, task in waiting.items()}
        return [reference for reference, seconds in patience.items() if quiet_s > seconds]

    def _make_here(self, task: Task, setup: TaskSetup, on_rows: Callable[[int], None]) -> Receipt:
        return next(iter(self._local.run(setup, [task], on_rows)))

    def _receipt(self, reference: Any, task: Task, setup: TaskSetup, on_rows: Callable[[int], None]) -> Receipt:
        try:
            receipt: Receipt = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause or PrepareError(f"a Ray task failed: {error}") from error
        except self._ray.exceptions.RayError:  # its worker or its machine is gone, or had too little memory
            return self._make_here(task, setup, on_rows)
        on_rows(task.num_rows)
        return receipt

    def _num_cpus(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))


_pools: dict[Any, LocalPool] = {}
"""In a Ray worker: its one decoding process, kept from task to task."""


def _make_shard(
    setup: TaskSetup,
    number: int,
    rows: RowBlock,
    sys_path: Sequence[str],
    timeout_s: float,
    request_rows: int,
) -> Receipt:
    """What Ray runs. The pool's process ends with the Ray worker."""
    how = (sys_path, timeout_s, request_rows)
    if how not in _pools:
        _pools[how] = LocalPool(1, *how)
        _pools[how].__enter__()
    task = Task(number, len(rows), lambda start, stop: rows[start:stop])
    try:
        return next(iter(_pools[how].run(setup, [task])))
    except BaseException:
        _pools.pop(how).__exit__()  # its worker is at something else still
        raise


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
