"""The Ray engine against a cluster that is made up: what comes, what fails, what is never heard of again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.store import cluster
from flatout.store.cluster import MIN_PATIENCE_S, RayEngine
from flatout.store.receipt import Receipt
from flatout.store.task import Task
from flatout.types import RowBlock

ROWS = 100


class Gone(Exception):
    """As Ray raises when a worker is lost."""


class Failed(Gone):
    """As Ray raises when the task itself raised."""

    cause = None


class FakeRay:
    """Tasks named in `silent` are never ready; those in `lost` are, and have no result. A wait takes 1 s."""

    exceptions = SimpleNamespace(RayError=Gone, RayTaskError=Failed)

    def __init__(self, silent: Sequence[int] = (), lost: Sequence[int] = (), task_s: float = 0.0) -> None:
        self.silent, self.lost, self.task_s = silent, lost, task_s
        self.now = self.busy_until = 0.0
        self.cancelled: list[int] = []

    def remote(self, **_: Any) -> Callable[[Any], Any]:
        return lambda function: SimpleNamespace(remote=lambda setup, number, *rest: number)

    def put(self, value: Any) -> Any:
        return value

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2}

    def wait(self, references: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        self.now += timeout
        ready = [number for number in references if number not in self.silent][:num_returns]
        if self.now < self.busy_until or not ready:
            return [], references
        self.busy_until = self.now + self.task_s
        return ready, [number for number in references if number not in ready]

    def get(self, number: int) -> Receipt:
        if number in self.lost:
            raise Gone
        return Receipt(number, (), (), ROWS)

    def cancel(self, number: int, *, force: bool) -> None:
        assert force
        self.cancelled.append(number)


class FakePool:
    """Notes what is made here."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def run(self, setup: Any, tasks: Sequence[Task], on_rows: Callable[[int], None]) -> Iterator[Receipt]:
        for task in tasks:
            self.made.append(task.number)
            on_rows(task.num_rows)
            yield Receipt(task.number, (), (), task.num_rows)


def run(ray: FakeRay, monkeypatch: pytest.MonkeyPatch, timeout_s: float = 2.0) -> tuple[list[int], list[int]]:
    """Numbers of the receipts of twelve tasks, sorted, and of the tasks made here."""
    monkeypatch.setattr(cluster, "monotonic", lambda: ray.now)
    engine, pool, rows = RayEngine(2, timeout_s=timeout_s), FakePool(), []
    engine._ray, engine._local = ray, pool  # type: ignore[assignment]
    tasks = [Task(number, ROWS, lambda start, stop: RowBlock([], {})) for number in range(12)]
    receipts = [receipt.task for receipt in engine.run(SimpleNamespace(), tasks, rows.append)]  # type: ignore[arg-type]
    assert sum(rows) == 12 * ROWS
    return sorted(receipts), pool.made


def test_what_comes_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay()
    assert run(ray, monkeypatch) == (list(range(12)), [])
    assert ray.cancelled == []


def test_what_is_lost_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(FakeRay(lost=[4]), monkeypatch) == (list(range(12)), [4])


def test_what_is_never_heard_of_is_cancelled_and_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(silent=[3, 7])
    assert run(ray, monkeypatch) == (list(range(12)), [3, 7])
    assert ray.cancelled == [3, 7]
    assert 2.0 * ROWS < ray.now < 2.0 * ROWS + 30  # not before its rows may have taken so long


def test_all_of_a_cluster_that_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(silent=range(12))
    receipts, made = run(ray, monkeypatch)
    assert receipts == list(range(12)) == sorted(made)


def test_a_task_is_not_late_while_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(task_s=150.0)  # the last of twelve waits for half an hour, with 200 s for its own rows
    assert run(ray, monkeypatch) == (list(range(12)), [])
    assert ray.cancelled == []
    assert ray.now > 2.0 * ROWS


def test_a_short_time_limit_leaves_time_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(silent=[11])
    assert run(ray, monkeypatch, timeout_s=0.001) == (list(range(12)), [11])
    assert ray.now > MIN_PATIENCE_S
