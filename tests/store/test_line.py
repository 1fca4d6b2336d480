"""A line's requests: as many rows as take a fifth of a second, at the pace of those before."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.store import line as lines
from flatout.store.line import IN_FLIGHT, MOST_REQUESTS, REQUEST_S, Line
from flatout.store.task import Task
from flatout.types import RowBlock

ROWS = 16


class Worker:
    """Takes requests and answers them one after another, on a clock of its own."""

    def __init__(self) -> None:
        self.setup = None
        self.row_s = 0.0
        self.now = 0.0
        self.sizes: list[int] = []
        self._waiting: list[int] = []
        self.most_waiting = 0

    def ask(self, *_: Any) -> list[Any]:
        return []

    def post(self, _: str, block: RowBlock) -> None:
        self.sizes.append(len(block))
        self._waiting.append(len(block))
        self.most_waiting = max(self.most_waiting, len(self._waiting))

    def wait(self, _: Any) -> tuple[int, list[Any]]:
        num_rows = self._waiting.pop(0)
        self.now += num_rows * self.row_s
        return num_rows, []


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    worker = Worker()
    monkeypatch.setattr(lines.time, "monotonic", lambda: worker.now)
    return worker


def line_of(worker: Any) -> Line:
    return Line(worker, "setup", ROWS, lambda dead: dead, lambda count: None, lambda receipt: None)  # type: ignore[arg-type]


def requests_of(line: Line, worker: Worker, num_rows: int, row_s: float) -> list[int]:
    worker.sizes.clear()
    worker.row_s = row_s
    line.make(Task(len(worker.sizes), num_rows, lambda start, stop: RowBlock([""] * (stop - start), {})))
    assert sum(worker.sizes) == num_rows
    return list(worker.sizes)


def test_requests_of_quick_rows_grow_within_the_first_task(worker: Worker) -> None:
    sizes = requests_of(line_of(worker), worker, 20_000, 1e-5)
    assert sizes[:IN_FLIGHT] == [ROWS] * IN_FLIGHT
    assert max(sizes) == ROWS * MOST_REQUESTS
    assert worker.most_waiting == IN_FLIGHT


def test_rows_of_middling_pace_travel_half_a_second_together(worker: Worker) -> None:
    assert requests_of(line_of(worker), worker, 5000, 0.001)[-2] == pytest.approx(REQUEST_S / 0.001, abs=1)


@pytest.mark.parametrize("num_rows", [100, 3000, 20_000])
def test_slow_rows_behind_quick_ones_travel_in_small_requests_again(worker: Worker, num_rows: int) -> None:
    """However few requests a task has: what is on disk is told with an answer."""
    line = line_of(worker)
    for _ in range(3):
        requests_of(line, worker, num_rows, 1e-5)
    requests_of(line, worker, num_rows, 0.5)
    assert set(requests_of(line, worker, num_rows, 0.5)[:-1]) <= {ROWS}
