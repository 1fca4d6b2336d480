"""A worker's receipts: a shard that fails does not take those with it that are on disk."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from flatout.store.line import Line
from flatout.store.receipt import Receipt
from flatout.store.task import Task
from flatout.store.worker import MAX_BEHIND, Worker


def finished(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


def worker_of(*results: Any) -> Worker:
    worker = Worker(progress=None)  # type: ignore[arg-type]
    worker._behind = [finished(result) for result in results]
    return worker


def test_good_receipts_come_before_a_failure() -> None:
    worker = worker_of("first", OSError("disk full"), "third", OSError("still full"))
    assert worker.answer(("settle",)) == ["first", "third"]
    for text in ("disk full", "still full"):
        with pytest.raises(OSError, match=text):
            worker.answer(("settle",))
    assert worker.answer(("settle",)) == []


def test_what_is_under_way_stays() -> None:
    worker = worker_of("first", OSError("disk full"))
    under_way: Future[Any] = Future()
    worker._behind.insert(0, under_way)
    assert worker._receipts() == ["first"]
    with pytest.raises(OSError, match="disk full"):
        worker._receipts()
    assert worker._behind == [under_way]
    assert worker._receipts() == []


def test_whoever_waits_for_the_end_hears_of_both() -> None:
    """Receipts of shards that are on disk are noted before the run ends with the failure."""
    receipts = [Receipt(number, (), (), 1) for number in (1, 3)]
    answers: list[Any] = [receipts, OSError("disk full")]

    class Asked:
        def ask(self, name: str) -> Any:
            assert name == "settle"
            answer = answers.pop(0)
            if isinstance(answer, OSError):
                raise answer
            return answer

    noted: list[Receipt] = []
    nobody: Callable[..., Any] = lambda *of: None  # noqa: E731
    line = Line(Asked(), None, 16, nobody, nobody, noted.append)  # type: ignore[arg-type]
    line._behind = {number: Task(number, 1, nobody) for number in (1, 2, 3)}
    with pytest.raises(OSError, match="disk full"):
        line.settle()
    assert noted == receipts


def test_no_more_shards_wait_for_the_disk_than_may() -> None:
    """Each has temporary files, and a receipt that nobody has noted."""
    worker, under_way = worker_of(), [Future[Any]() for _ in range(MAX_BEHIND + 1)]
    left = iter(under_way)

    class Made:
        def finish_behind(self, *_: Any) -> tuple[Future[Any], Future[Any]]:
            return finished(None), next(left)

    def finish() -> Any:
        worker._task = Made()
        return worker.answer(("finish",))

    assert [finish() for _ in range(MAX_BEHIND)] == [[]] * MAX_BEHIND
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(finish)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        under_way[1].set_result("the second")
        assert waiting.result(timeout=60.0) == ["the second"]
