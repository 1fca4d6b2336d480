"""The ceiling from blocks of steps, and from waits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.doctor.made_records import made_record
from torch.utils.data import DataLoader, TensorDataset

from flatout.doctor.ceiling import sources
from flatout.doctor.ceiling.measure import ceiling_of, one_thread_of, resident_seconds
from flatout.doctor.ceiling.plan import (
    EPOCH_S,
    LEAST_ROUNDS,
    LEAST_STEPS,
    MOST_ROUNDS,
    SERIES_S,
    SHORT_EPOCH,
    THREAD_ROUNDS,
    Block,
    block_steps,
    ceiling_blocks,
    in_turns,
    num_rounds,
    sources_in_time,
    steps_in_time,
    unevenness,
    used_up_first,
)
from flatout.doctor.ceiling.sources import LoaderSource, ResidentSource, keep_batches
from flatout.doctor.record import PHASES, Step
from flatout.doctor.steps.cut import Steps
from flatout.doctor.steps.phases import Phases
from flatout.doctor.steps.trace import BlockRow, Span, Trace


def steps_of(*waits: float, work: float = 1.0) -> Steps:
    each = [Step(0.0, dict.fromkeys(PHASES, 0.0) | {"wait": wait, "forward": work}) for wait in waits]
    return Steps(tuple(each), 5, 0.0, 1.0)


def blocks_of(base: list[float], resident: list[float]) -> list[BlockRow]:
    """Four steps a block, one block after the other."""
    at, rows = 0.0, []
    for number, pair in enumerate(zip(base, resident, strict=True)):
        for name, seconds in zip(("base", "resident"), pair, strict=True):
            rows.append(BlockRow(name, number, at, at + 4 * seconds, 4, seconds))
            at += 4 * seconds
    return rows


def test_the_gain_is_the_ratio_of_the_blocks() -> None:
    trace = Trace(1, blocks=blocks_of([3.0, 3.3, 2.7], [1.0, 1.1, 0.9]), alone=(10.0, 5))
    found = ceiling_of(trace, steps_of(2.0, 2.0), Phases(trace))
    assert found is not None
    assert found.gain == pytest.approx(3.0)
    assert found.low == pytest.approx(3.0)
    assert found.loader_batch_s == 2.0


def test_noise_makes_it_less_sure() -> None:
    trace = Trace(1, blocks=blocks_of([3.0, 2.0, 4.0, 3.0], [1.0, 1.1, 0.9, 1.3]))
    found = ceiling_of(trace, steps_of(2.0), Phases(trace))
    assert found is not None
    assert found.low < found.gain < found.high


@pytest.mark.parametrize(
    ("resident", "is_vague"), [([0.3, 1.0, 3.0, 1.3], True), ([1.1, 1.2, 1.3, 1.2], False)]
)
def test_no_better_data_makes_a_training_slower(resident: list[float], is_vague: bool) -> None:
    trace = Trace(1, blocks=blocks_of([1.0] * 4, resident))
    found = ceiling_of(trace, steps_of(2.0), Phases(trace))
    assert found is not None
    assert found.low == 1.0
    assert (found.high > 3.0) is is_vague
    assert found.is_vague is is_vague
    told = replace(made_record(), ceiling=found).to_json()["ceiling"]
    assert 1.0 <= told["low"] <= told["gain"] <= told["high"]


def test_the_doctors_own_time_does_not_count() -> None:
    blocks = blocks_of([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    own = [Span(block.start, block.start + 2.0, "own") for block in blocks if block.name == "resident"]
    trace = Trace(1, blocks=blocks, spans=own)
    found = ceiling_of(trace, steps_of(1.0), Phases(trace))
    assert found is not None
    assert found.gain == pytest.approx(4.0)
    assert resident_seconds(trace, Phases(trace)) == (
        {phase: pytest.approx(0.5 if phase == "other" else 0.0) for phase in PHASES if phase != "evaluate"},
        0.25,
    )


@pytest.mark.parametrize("rounds", [1, 2])
def test_few_rounds_are_not_enough(rounds: int) -> None:
    trace = Trace(1, blocks=blocks_of([3.0, 5.0][:rounds], [1.0, 1.2][:rounds]))
    found = ceiling_of(trace, steps_of(3.0, 3.0), Phases(trace))
    assert found is not None
    assert found.gain == pytest.approx(4.0)
    assert (found.low, found.high) == (
        pytest.approx(4.0),
        pytest.approx(4.0),
    )  # of the steps, not of two blocks


@given(st.lists(st.floats(0.0, 5.0), min_size=1, max_size=60))
def test_from_waits(waits: list[float]) -> None:
    found = ceiling_of(Trace(1), steps_of(*waits), Phases(Trace(1)))
    assert found is not None
    assert found.gain == pytest.approx((len(waits) + sum(waits)) / len(waits))
    assert 1.0 <= found.low <= found.gain + 1e-9
    assert found.gain <= found.high + 1e-9


def test_without_steps_there_is_none() -> None:
    assert ceiling_of(Trace(1), steps_of(), Phases(Trace(1))) is None


@given(st.floats(1e-5, 30.0), st.integers(0, 16), st.none() | st.integers(1, 500))
def test_blocks_are_whole_rounds_and_whole_short_epochs(step_s: float, workers: int, epoch: int | None) -> None:
    steps = block_steps(step_s, workers, epoch)
    assert steps >= max(LEAST_STEPS, workers)
    is_short = epoch is not None and epoch <= SHORT_EPOCH and epoch * step_s <= EPOCH_S
    assert steps % (epoch if epoch is not None and is_short else max(workers, 1)) == 0


def test_short_epochs_of_slow_steps_are_not_waited_for() -> None:
    assert block_steps(0.1, 0, 35) == 35
    assert block_steps(0.6, 0, 35) == LEAST_STEPS


def test_uneven_steps_make_longer_blocks() -> None:
    """One step in ten takes twenty times as long as the others."""
    starts = [0.0]
    for number in range(60):
        starts.append(starts[-1] + (0.06 if number % 10 == 9 else 0.003))
    uneven = unevenness(starts)
    assert uneven == pytest.approx(1.96, rel=0.05)
    assert block_steps(0.0087, 2, None, uneven) > 3 * block_steps(0.0087, 2, None)
    assert block_steps(10.0, 0, None, uneven) == LEAST_STEPS
    assert unevenness([1.0, 2.0, 3.0]) == 0.0
    assert unevenness([1.0]) == 0.0


def test_slow_steps_make_fewer_rounds() -> None:
    assert num_rounds(0.001, 64, 2) == MOST_ROUNDS
    assert num_rounds(10.0, 4, 6) == LEAST_ROUNDS


def source_of(name: str, *epoch: int) -> LoaderSource:
    return LoaderSource(name, lambda: iter(epoch), next)


def test_a_source_goes_on_after_its_epoch() -> None:
    source = source_of("base", 1, 2, 3)
    assert [source.next() for _ in range(7)] == [1, 2, 3, 1, 2, 3, 1]
    assert source.num_starts == 3


def test_a_closed_source_gives_nothing() -> None:
    source = source_of("base", 1)
    source.close()
    with pytest.raises(RuntimeError, match="closed"):
        source.next()


def test_sources_take_turns() -> None:
    sources = [source_of("a", 1), source_of("b", 1)]
    blocks = list(in_turns(sources, 4, 0.1, range(3)))
    assert [block.source.name for block in blocks] == ["a", "b"] * 3
    assert [block.round for block in blocks] == [0, 0, 1, 1, 2, 2]


def test_batches_made_ahead_are_used_up_first() -> None:
    class Ahead(LoaderSource):
        @property
        def num_ahead(self) -> int:
            return 4

    source = Ahead("base", lambda: iter(range(100)), next)
    assert used_up_first(source, 0.1) == 4
    assert used_up_first(source, 10.0) == 1
    assert source.next() == 4


def test_resident_batches_are_copies() -> None:
    source = ResidentSource(keep_batches(LoaderSource("base", lambda: iter([torch.zeros(2)] * 3), next)))
    source.next().add_(1)
    assert all(float(source.next().sum()) == 0 for _ in range(9))


def test_very_slow_steps_are_replayed_within_the_time_limit() -> None:
    """Ten seconds a step: without a limit ten minutes."""
    assert sources_in_time(10.0, 120.0) == 2
    assert steps_in_time(10.0, LEAST_STEPS, 2, 120.0) == 1
    assert sources_in_time(0.1, 120.0) > 4
    assert steps_in_time(0.1, 7, 4, 120.0) == 7
    assert steps_in_time(2.0, 3, 4, 1e9) == 3


@given(st.floats(1e-4, 60.0), st.floats(1.0, 600.0))
def test_a_series_ends_within_the_time_limit(step_s: float, limit_s: float) -> None:
    sources = min(4, sources_in_time(step_s, limit_s))
    if sources < 2:
        assert 2 * LEAST_ROUNDS * 2 * step_s > limit_s
        return
    steps = steps_in_time(step_s, block_steps(step_s, 0, None), sources, limit_s)
    assert steps >= 1
    assert LEAST_ROUNDS * sources * (steps + 1) * step_s <= max(limit_s, SERIES_S) * (1 + 1e-9)


def blocks_in_time(step_s: float, limit_s: float) -> list[Block]:
    loader: DataLoader[Any] = DataLoader(TensorDataset(torch.rand(64, 4)), batch_size=4)
    base = LoaderSource("base", lambda: iter(loader), next)
    return list(ceiling_blocks(base, step_s, block_steps(step_s, 0, None), loader, None, limit_s))


def test_slow_steps_have_fewer_sources_and_shorter_blocks() -> None:
    blocks = blocks_in_time(10.0, 120.0)
    assert [block.source.name for block in blocks] == ["base", "resident"] * LEAST_ROUNDS
    assert sum(10.0 * (block.num_steps + block.num_skipped) for block in blocks) <= 120.0
    assert blocks_in_time(10.0, 30.0) == []
    names = {block.source.name for block in blocks_in_time(0.5, 120.0)}
    assert {"base", "resident", "beside"} <= names


def test_one_thread_takes_turns_with_all_where_there_are_more() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        loader: DataLoader[Any] = DataLoader(TensorDataset(torch.rand(64, 4)), batch_size=4)
        base = LoaderSource("base", lambda: iter(loader), next)
        seen = [
            (block.source.name, torch.get_num_threads())
            for block in ceiling_blocks(base, 0.01, 3, loader, None, 120.0)
            if block.round in THREAD_ROUNDS
        ]
        assert seen == [("resident", 2), ("one_thread", 1)] * len(THREAD_ROUNDS)
        assert torch.get_num_threads() == 2
        assert "one_thread" not in [
            block.source.name for block in blocks_in_time(0.5, 120.0)
        ]  # would last too long
        torch.set_num_threads(1)
        assert "one_thread" not in [block.source.name for block in blocks_in_time(0.01, 120.0)]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("many", "gain"),
    [
        ([3.0, 3.3, 2.7], 3.0),
        ([3.0, 2.0, 0.8], 1.0),
        ([2.0, 330.0, 1.8], 7.0),
        ([0.5, 0.5, 0.5], 1.0),
        ([3.0, 3.0], None),
    ],
)
def test_one_thread_is_faster_only_beyond_noise(many: list[float], gain: float | None) -> None:
    blocks = [
        block._replace(name="one_thread" if block.name == "resident" else "resident")
        for block in blocks_of(many, [1.0, 1.1, 0.9][: len(many)])
    ]
    trace = Trace(1, blocks=blocks)
    assert one_thread_of(trace, Phases(trace)) == (None if gain is None else pytest.approx(gain, rel=1e-3))


@pytest.mark.parametrize(("batch_s", "num_made"), [(8.0, 4), (0.5, 4), (3600.0, 0)])
def test_workers_are_waited_for_while_they_make_batches(
    batch_s: float, num_made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four batches of 8 s are made before anybody else is measured; one that never comes is not waited for."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += max(seconds, 0.1)

    monkeypatch.setattr(sources, "perf_counter", lambda: now)
    monkeypatch.setattr(sources, "sleep", sleep)
    queue = SimpleNamespace(qsize=lambda: min(4, int(now / batch_s)))
    iterator = SimpleNamespace(_num_workers=2, _prefetch_factor=2, _tasks_outstanding=4, _data_queue=queue)
    LoaderSource("base", lambda: iterator, next, iterator).settle()
    assert queue.qsize() == num_made
    assert now < 2 * sources.SETTLE_S
