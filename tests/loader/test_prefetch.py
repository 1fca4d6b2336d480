"""Prefetcher: items in exact order whatever the threads, errors in their place, nothing left behind."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loader.epochs import WAIT_S, producers

from flatout.errors import LoaderError
from flatout.loader import prefetch
from flatout.loader.prefetch import Prefetcher
from flatout.loader.switching import SWITCH_S


def each(make: Callable[[int], Any]) -> Callable[[int, int], list[Any]]:
    """Items made one after the other."""
    return lambda first, count: [make(number) for number in range(first, first + count)]


@given(st.integers(0, 4), st.integers(1, 3), st.integers(1, 5), st.integers(0, 100), st.integers(1, 40))
def test_items_come_in_order(num_threads: int, depth: int, unit: int, first: int, count: int) -> None:
    stream = Prefetcher(each(lambda number: number * 10), first, num_threads, depth, unit)
    for number in range(first, first + count):
        assert stream.next_number == number
        assert stream.take() == number * 10
    stream.close()


@pytest.mark.parametrize(("num_threads", "depth", "unit"), [(1, 1, 1), (2, 2, 1), (3, 1, 4)])
def test_just_the_depth_is_made_ahead(num_threads: int, depth: int, unit: int) -> None:
    made: list[int] = []
    all_made = threading.Event()
    num_taken = 1 + unit  # the first comes alone
    wanted = num_threads * depth * unit + num_taken

    def make(number: int) -> int:
        made.append(number)
        if len(made) == wanted:
            all_made.set()
        return number

    stream = Prefetcher(each(make), 0, num_threads, depth, unit)
    for _ in range(num_taken):
        stream.take()
    assert all_made.wait(WAIT_S)
    stream.close()
    assert sorted(made) == list(range(wanted))


@pytest.mark.parametrize("num_threads", [0, 1, 3])
@pytest.mark.parametrize("unit", [1, 4])
def test_an_error_comes_in_its_items_place_and_again_when_asked_again(num_threads: int, unit: int) -> None:
    before = producers()

    def make(number: int) -> int:
        if number == 6:
            raise KeyError("the sixth")
        return number

    stream = Prefetcher(each(make), 0, num_threads, 4, unit)
    assert [stream.take() for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    for _ in range(3):
        with pytest.raises(KeyError, match="the sixth"):
            stream.take()
        assert stream.next_number == 6
    assert producers() == before


@pytest.mark.parametrize("num_threads", [0, 1])
def test_a_consumer_that_helps_is_interrupted_at_once(num_threads: int) -> None:
    """Ctrl-C comes in the main thread, whatever unit that is making; it is not kept for the unit's turn."""
    is_open, main = threading.Event(), threading.main_thread()

    def make(number: int) -> int:
        if threading.current_thread() is main:
            is_open.set()
            raise KeyboardInterrupt
        assert number == 0 or is_open.wait(WAIT_S)
        return number

    stream = Prefetcher(each(make), 0, num_threads, 4)
    with pytest.raises(KeyboardInterrupt):
        [stream.take() for _ in range(1 + num_threads)]
    stream.close()


def test_the_first_item_is_handed_over_as_soon_as_it_is_made() -> None:
    """On a cold disk the second may take ten times as long: the consumer leaves it to the producers."""
    is_waiting = threading.Event()
    helped: list[int] = []

    def make(number: int) -> int:
        if threading.current_thread() is threading.main_thread():
            helped.append(number)
        elif number == 0:  # the consumer has found nothing, and waits or has begun another
            assert is_waiting.wait(WAIT_S)
            time.sleep(0.05)
        return number

    stream = Prefetcher(each(make), 0, 1, 4)
    threading.Timer(0.05, is_waiting.set).start()
    assert stream.take() == 0
    assert helped == []
    assert [stream.take() for _ in range(20)] == list(range(1, 21))
    stream.close()


def test_with_no_producer_left_the_consumer_makes_the_first_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that leave, asked to, before they have made anything."""
    are_dismissed = threading.Event()
    produce = prefetch._produce

    def late(belt: prefetch.Belt, number: int) -> None:
        assert are_dismissed.wait(WAIT_S)
        produce(belt, number)

    monkeypatch.setattr(prefetch, "_produce", late)
    stream = Prefetcher(each(lambda number: number), 0, 2, 4)
    stream.resize(0, 4)
    are_dismissed.set()
    assert [stream.take() for _ in range(20)] == list(range(20))
    stream.close()


def test_an_exit_in_a_producer_comes_in_its_items_place() -> None:
    failed = threading.Event()

    def make(number: int) -> int:
        failed.set()
        raise SystemExit(3)

    stream = Prefetcher(each(make), 0, 1, 1)
    assert failed.wait(WAIT_S)
    with pytest.raises(SystemExit):
        stream.take()
    stream.close()


def test_a_consumer_need_not_wait_for_a_slow_producer() -> None:
    """One producer is stuck with the second unit: the consumer makes the others meanwhile."""
    is_stuck, go_on = threading.Event(), threading.Event()
    made_by: dict[int, bool] = {}

    def make(number: int) -> int:
        is_producer = threading.current_thread() is not threading.main_thread()
        if number == 1:
            is_stuck.set()
            assert go_on.wait(WAIT_S)
        made_by[number] = is_producer
        if number == 3:  # the last that may be made before the second is taken
            go_on.set()
        return number

    stream = Prefetcher(each(make), 0, 1, 4)
    assert stream.take() == 0
    assert is_stuck.wait(WAIT_S)
    assert [stream.take() for _ in range(5)] == [1, 2, 3, 4, 5]
    stream.close()
    assert not made_by[2]
    assert not made_by[3]


def test_an_error_that_nobody_asks_for_is_no_error() -> None:
    failed = threading.Event()

    def make(number: int) -> int:
        if number == 5:
            failed.set()
            raise ValueError
        return number

    stream = Prefetcher(each(make), 0, 2, 8)
    assert failed.wait(WAIT_S)
    assert [stream.take() for _ in range(5)] == [0, 1, 2, 3, 4]
    stream.close()


def test_dropping_it_ends_its_threads() -> None:
    before = producers()
    stream = Prefetcher(each(lambda number: number), 0, 3, 2)
    stream.take()
    assert len(producers() - before) == 3
    del stream
    assert producers() == before


def test_a_collected_cycle_ends_its_threads() -> None:
    before = producers()
    holder: list[Any] = [Prefetcher(each(lambda number: number), 0, 2, 2)]
    holder.append(holder)
    del holder
    gc.collect()
    assert producers() == before


def test_used_after_it_was_closed_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "POLL_S", 0.01)
    stream = Prefetcher(each(lambda number: number), 0, 1, 1)
    stream.take()
    stream.close()
    stream.close()
    with pytest.raises(LoaderError, match="producers are gone"):
        [stream.take() for _ in range(5)]


def test_a_producer_may_close_its_own_stream() -> None:
    """As garbage collection does when it happens to run there, here with a lock that the others wait for."""
    lock, both, closed = threading.Lock(), threading.Barrier(2), threading.Event()
    streams: list[Prefetcher[int]] = []
    is_known = threading.Event()
    before = producers()

    def make(number: int) -> int:
        is_known.wait(WAIT_S)
        if number == 0:
            with lock:
                both.wait(WAIT_S)
                streams[0].close()
                closed.set()
        elif number == 1:
            both.wait(WAIT_S)
            with lock:
                pass
        return number

    streams.append(Prefetcher(each(make), 0, 2, 1))
    is_known.set()
    assert closed.wait(WAIT_S)
    for thread in producers() - before:
        thread.join(WAIT_S)
    assert producers() == before


def test_the_switch_interval_is_low_while_producers_live() -> None:
    before = sys.getswitchinterval()
    first = Prefetcher(each(lambda number: number), 0, 1, 1)
    second = Prefetcher(each(lambda number: number), 0, 2, 1)
    assert sys.getswitchinterval() == pytest.approx(min(before, SWITCH_S))
    first.close()
    assert sys.getswitchinterval() == pytest.approx(min(before, SWITCH_S))
    second.close()
    assert sys.getswitchinterval() == pytest.approx(before)
    Prefetcher(each(lambda number: number), 0, 0, 1)
    assert sys.getswitchinterval() == pytest.approx(before)


def test_a_producer_that_drops_another_stream_waits_for_nobody() -> None:
    """The collector runs where it likes: also in a producer with a lock that the other's producers wait for."""
    lock, is_waiting = threading.Lock(), threading.Event()

    def make_locked(number: int) -> int:
        is_waiting.set()
        with lock:
            return number

    lock.acquire()
    dropped = [Prefetcher(each(make_locked), 0, 1, 1)]
    assert is_waiting.wait(WAIT_S)

    def make_dropping(number: int) -> int:
        dropped.clear()
        lock.release()
        return number

    stream = Prefetcher(each(make_dropping), 0, 1, 1)
    assert stream.take() == 0
    with pytest.raises(RuntimeError):  # released twice
        stream.take()
    for thread in producers():
        thread.join(WAIT_S)
    assert not producers()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=8),
    st.integers(1, 5),
    st.integers(0, 50),
)
def test_items_stay_the_same_however_often_it_is_resized(
    changes: list[tuple[int, int, int]], unit: int, first: int
) -> None:
    stream = Prefetcher(each(lambda number: number * 10), first, 1, 2, unit)
    found, wanted = [], 0
    for num_threads, depth, count in changes:
        stream.resize(num_threads, depth)
        assert stream.shape == (num_threads, depth)
        found += [stream.take() for _ in range(count)]
        wanted += count
    stream.close()
    assert found == [number * 10 for number in range(first, first + wanted)]


def test_a_stream_that_is_widened_makes_more_ahead_and_one_that_is_narrowed_less() -> None:
    made: list[int] = []
    reached = {8: threading.Event(), 17: threading.Event()}

    def make(number: int) -> int:
        made.append(number)
        if len(made) in reached:
            reached[len(made)].set()
        return number

    stream = Prefetcher(each(make), 0, 1, 2)
    stream.resize(2, 4)
    assert reached[8].wait(WAIT_S)
    assert sorted(made) == list(range(8))
    stream.resize(1, 2)  # what is made already is taken first
    assert [stream.take() for _ in range(6)] == list(range(6))
    assert len(made) == 8
    stream.resize(3, 4)
    assert [stream.take() for _ in range(2)] == [6, 7]
    stream.close()


def test_producers_that_are_too_many_leave_after_one_more() -> None:
    made_by: list[str] = []

    def make(number: int) -> int:
        made_by.append(threading.current_thread().name)
        return number

    stream = Prefetcher(each(make), 0, 3, 1)
    stream.resize(1, 1)
    made_by.clear()
    assert [stream.take() for _ in range(60)] == list(range(60))
    stream.close()
    assert all(made_by.count(f"flatout-producer-{number}") <= 1 for number in (1, 2))


def test_a_producer_on_its_way_out_is_replaced_when_it_is_wanted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    leaving, may_go, stays = threading.Event(), threading.Event(), prefetch.Belt.stays

    def stays_or_goes_slowly(belt: Any, number: int) -> bool:
        if stays(belt, number):
            return True
        leaving.set()
        may_go.wait(WAIT_S)
        return False

    monkeypatch.setattr(prefetch.Belt, "stays", stays_or_goes_slowly)
    before = producers()
    stream = Prefetcher(each(lambda number: number), 0, 2, 1)
    stream.resize(1, 1)
    while not leaving.is_set():
        stream.take()
    stream.resize(2, 1)
    assert len(producers() - before) == 3
    may_go.set()
    stream.close()


def test_a_producer_that_could_not_be_started_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    start, calls = threading.Thread.start, iter([False, True])

    def start_but_once(thread: threading.Thread) -> None:
        if next(calls, False):
            raise RuntimeError("can't start new thread")
        start(thread)

    before = producers()
    stream = Prefetcher(each(lambda number: number), 0, 1, 1)
    monkeypatch.setattr(threading.Thread, "start", start_but_once)
    with pytest.raises(RuntimeError, match="can't start"):
        stream.resize(4, 1)
    stream.resize(4, 1)
    assert len(producers() - before) == 4
    assert [stream.take() for _ in range(9)] == list(range(9))
    stream.close()


def test_resizing_a_stream_that_is_closed_starts_nothing() -> None:
    before = producers()
    stream = Prefetcher(each(lambda number: number), 0, 1, 1)
    stream.close()
    stream.resize(4, 4)
    assert producers() == before


def test_whoever_drops_a_stream_with_a_lock_that_its_producers_want_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The collector runs where it likes: also in the consumer, which may hold the lock of the cache."""
    monkeypatch.setattr(prefetch, "DROP_WAIT_S", 0.01)
    before, interval = producers(), sys.getswitchinterval()
    lock, is_waiting = threading.Lock(), threading.Event()

    def make(number: int) -> int:
        is_waiting.set()
        with lock:
            return number

    with lock:
        stream = Prefetcher(each(make), 0, 2, 1)
        assert is_waiting.wait(WAIT_S)
        del stream
        left = producers() - before
        assert left
        assert sys.getswitchinterval() == pytest.approx(interval)
    for thread in left:
        thread.join(WAIT_S)
    assert producers() == before


def test_closing_waits_for_a_unit_under_way_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "DROP_WAIT_S", 0.0)
    before = producers()
    is_making, may_end = threading.Event(), threading.Event()

    def make(number: int) -> int:
        is_making.set()
        may_end.wait(WAIT_S)
        return number

    stream = Prefetcher(each(make), 0, 1, 1)
    assert is_making.wait(WAIT_S)
    closing = threading.Thread(target=stream.close)
    closing.start()
    assert producers() - before
    may_end.set()
    closing.join(WAIT_S)
    assert producers() == before


def test_the_switch_interval_is_put_back_where_not_one_producer_could_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = sys.getswitchinterval()

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(prefetch._Producer, "start", fail)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can't start"):
                Prefetcher(each(lambda number: number), 0, 2, 1)
        stream = Prefetcher(each(lambda number: number), 0, 0, 1)
        with pytest.raises(RuntimeError, match="can't start"):
            stream.resize(2, 1)
        gc.collect()
        assert sys.getswitchinterval() == pytest.approx(before)
    stream.resize(2, 1)
    assert sys.getswitchinterval() == pytest.approx(min(before, SWITCH_S))
    stream.close()
    assert sys.getswitchinterval() == pytest.approx(before)
