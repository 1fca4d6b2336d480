"""Rows are shared among threads: each is done once, errors come back, a forked child has threads of its own."""

from __future__ import annotations

import multiprocessing
import threading

import pytest
import torch

from flatout.augment.threads import run_rows


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 7, 1000])
def test_every_row_is_done_once(num_rows: int, num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    counts, names = [0] * num_rows, set()

    def count(step: int, first: int, last: int) -> None:
        names.add(threading.current_thread().name)
        for row in range(first, last):
            counts[row] += step

    run_rows(count, num_rows, 3)
    assert counts == [3] * num_rows
    assert any("flatout-augment" in name for name in names) == (num_threads > 1 and num_rows > 1)


def test_errors_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)

    def fail(first: int, last: int) -> None:
        raise ValueError(f"rows {first} to {last}")

    with pytest.raises(ValueError, match="rows 0 to"):
        run_rows(fail, 10)


def _sum_rows(connection: object) -> None:
    done: list[int] = []
    run_rows(lambda first, last: done.extend(range(first, last)), 20)
    connection.send(sorted(done))  # type: ignore[attr-defined]


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    run_rows(lambda first, last: None, 20)
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_sum_rows, args=(theirs,))
    child.start()
    assert ours.poll(30)
    assert ours.recv() == list(range(20))
    child.join(30)
    assert child.exitcode == 0
