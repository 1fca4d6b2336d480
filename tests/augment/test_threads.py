"""Rows are shared among threads: each is done once, errors come back, a forked child has threads of its own."""

from __future__ import annotations

import multiprocessing
import threading

import pytest
import torch

from flatout.augment.threads import PARTS_A_THREAD, run_rows


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 7, 1000])
def test_every_row_is_done_once(num_rows: int, num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    counts, names = [0] * num_rows, set()

    is_shared = threading.Event()

    def count(step: int, first: int, last: int) -> None:
        names.add(threading.current_thread().name)
        if len(names) >= min(num_threads, num_rows, 2):
            is_shared.set()
        assert is_shared.wait(30)  # nobody does all before another has begun
        for row in range(first, last):
            counts[row] += step

    run_rows(count, num_rows, 3)
    assert counts == [3] * num_rows
    assert any("flatout-augment" in name for name in names) == (num_threads > 1 and num_rows > 1)


def test_parts_of_parts_stay_in_their_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool whose threads wait for each other would wait for ever."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    seen: list[tuple[str, int, int]] = []

    def inner(first: int, last: int) -> None:
        seen.append((threading.current_thread().name, first, last))

    def outer(first: int, last: int) -> None:
        before = len(seen)
        run_rows(inner, 100)
        assert (threading.current_thread().name, 0, 100) in seen[before:]

    run_rows(outer, 10)
    assert [each[1:] for each in seen] == [(0, 100)] * 10
    run_rows(inner, 100)  # the caller is no part any more
    assert len(seen) == 10 + 2 * PARTS_A_THREAD


def test_errors_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)

    def fail(first: int, last: int) -> None:
        raise ValueError(f"rows {first} to {last}")

    with pytest.raises(ValueError, match=r"rows \d to \d"):  # of whichever thread was first
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
