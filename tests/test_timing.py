"""The clock counts each span once, from any thread, and its numbers travel."""

from __future__ import annotations

import json
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flatout.timing as timing
from flatout.timing import StageClock, StageStats, merge_stats

STATS = st.builds(StageStats, st.integers(0, 1000).map(float), st.integers(0, 10**9), st.integers(0, 10**12))
PARTS = st.dictionaries(st.sampled_from(["find", "decode", "encode"]), STATS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StageClock:
    """A clock whose time moves on by 1 ms at each look."""
    now = iter(range(0, 10**12, 1_000_000))
    monkeypatch.setattr(timing, "perf_counter_ns", lambda: next(now))
    return StageClock()


def test_spans_add_up_by_stage_in_order_of_arrival(clock: StageClock) -> None:
    for _ in range(3):
        with clock.span("decode", num_bytes=10):
            pass
    with clock.span("check") as span:
        span.num_bytes = 7
    assert list(clock.stats().items()) == [
        ("decode", StageStats(0.003, 3, 30)),
        ("check", StageStats(0.001, 1, 7)),
    ]


def test_nested_spans_count_for_both_stages(clock: StageClock) -> None:
    with clock.span("outer"), clock.span("inner"):
        pass
    assert clock.stats() == {"inner": StageStats(0.001, 1, 0), "outer": StageStats(0.003, 1, 0)}


def test_a_failing_span_counts(clock: StageClock) -> None:
    with pytest.raises(KeyError), clock.span("decode"):
        raise KeyError
    assert clock.stats()["decode"].count == 1


class Yielding(int):
    """A number that lets other threads run in the middle of an addition."""

    def __radd__(self, other: int) -> int:
        time.sleep(0)
        return int(self) + other


def test_threads_lose_nothing() -> None:
    clock = StageClock()

    def work(_: int) -> None:
        for _ in range(200):
            clock.add("decode", Yielding(1), num_bytes=Yielding(2))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert clock.stats()["decode"] == StageStats(1600 / 1e9, 1600, 3200)


@settings(deadline=None)
@given(st.lists(PARTS, max_size=4))
def test_merging_is_the_same_as_absorbing_in_any_order(parts: list[dict[str, StageStats]]) -> None:
    clock = StageClock()
    for part in reversed(parts):
        clock.absorb(part)
    assert clock.stats() == merge_stats(parts)


@settings(deadline=None)
@given(STATS)
def test_stats_travel_by_pickle_and_json(stats: StageStats) -> None:
    assert pickle.loads(pickle.dumps(stats)) == stats
    assert StageStats(**json.loads(json.dumps(stats.to_json()))) == stats
