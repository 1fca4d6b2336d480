"""Retune: what is changed when waits rise, that it is judged, never swings, and leaves every batch as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config import load_config
from flatout.loader import FastDataLoader
from flatout.loader.machine import Machine
from flatout.train import fit
from flatout.train import retune as retuning
from flatout.train.loaders import open_loaders
from flatout.train.ordinary import ResumableLoader
from flatout.train.retune import MOST_AHEAD, Retune, Retuner, can_adjust, make_retune
from flatout.train.waits import RunLoader, Waits

Make = Callable[..., dict[str, Any]]
GIB = 1 << 30


class Still:
    """A loader that only remembers."""

    def __init__(self, num_workers: int = 1, depth: int = 4) -> None:
        self.prefetching = (num_workers, depth)
        self.history = [self.prefetching]

    def adjust(self, *, num_workers: int | None = None, prefetch_factor: int | None = None) -> None:
        self.prefetching = (num_workers or self.prefetching[0], prefetch_factor or self.prefetching[1])
        self.history.append(self.prefetching)


def machine(free_bytes: int = 64 * GIB, num_cores: int = 4, shared_bytes: int | None = None) -> Machine:
    return Machine("linux", num_cores, 64 * GIB, free_bytes, shared_bytes)


def retuner(loader: Still, found: Machine | None = None, *, is_fast: bool = True) -> Retuner:
    return Retuner(loader, is_fast=is_fast, machine=lambda: found or machine())


def feed(tuner: Retuner, share: float, count: int, batch_bytes: int = 1000, step_s: float = 1.0) -> list[str]:
    said = [tuner.add(share * step_s, step_s, batch_bytes) for _ in range(count)]
    return [text for text in said if text is not None]


def feed_until_changed(tuner: Retuner, loader: Still, share: float) -> None:
    """Steps of a second; where they were shorter before, a rise shows earlier than in 49 of them."""
    while len(loader.history) == 1:
        feed(tuner, share, 1)


def test_a_change_that_helps_is_kept() -> None:
    loader = Still()
    tuner = retuner(loader)
    assert feed(tuner, 0.02, 200) == []
    (said,) = feed(tuner, 0.4, 49)
    assert loader.history == [(1, 4), (1, 8)]
    assert said.startswith("the wait for data is ")
    assert "of a step, before the rise 2%" in said
    assert said.endswith("prefetch_factor 4 -> 8")
    (kept,) = feed(tuner, 0.05, 90)
    assert kept.endswith("prefetch_factor is kept")
    assert feed(tuner, 0.05, 400) == []
    assert loader.history == [(1, 4), (1, 8)]


def test_what_helps_is_tried_further_while_much_is_left() -> None:
    loader = Still()
    tuner = retuner(loader)
    feed(tuner, 0.0, 170)
    feed(tuner, 0.8, 49)
    assert loader.history == [(1, 4), (1, 8)]
    (said,) = feed(tuner, 0.5, 80)
    assert "prefetch_factor is kept. The wait for data is" in said
    assert loader.history == [(1, 4), (1, 8), (1, 16)]
    assert feed(tuner, 0.02, 90)[0].endswith("prefetch_factor is kept")
    assert loader.prefetching == (1, 16)


def test_a_change_that_does_not_help_is_taken_back_and_the_next_is_tried() -> None:
    loader = Still()
    tuner = retuner(loader)
    feed(tuner, 0.0, 170)
    said = feed(tuner, 0.5, 300)
    assert loader.history == [(1, 4), (1, 8), (1, 4), (2, 4), (1, 4)]
    assert "prefetch_factor is as it was" in said[1]
    assert "num_workers 1 -> 2" in said[1]
    assert "nothing more can be changed" in said[2]
    assert feed(tuner, 0.9, 500) == []  # said once; nothing is tried twice
    assert loader.prefetching == (1, 4)


def test_a_change_is_judged_by_the_seconds_waited() -> None:
    """Beside a tenant of the disk nearly all of a step is waiting: 96 % of it is half of what 98 % is."""
    loader = Still()
    tuner = retuner(loader)
    feed(tuner, 0.01, 170, step_s=0.02)
    feed_until_changed(tuner, loader, 0.98)
    (said,) = feed(tuner, 0.96, 80, step_s=0.5)
    assert loader.history == [(1, 4), (1, 8), (1, 16)]
    assert "from 98% to 96% of a step, to 49% of its length: prefetch_factor is kept" in said
    (back,) = feed(tuner, 0.957, 80, step_s=0.465)
    assert "prefetch_factor is as it was" in back
    assert loader.history[-2:] == [(1, 8), (2, 8)]


def test_a_change_that_only_slows_the_computing_down_is_taken_back() -> None:
    """The share falls, though no batch comes earlier: workers take the cores that the model needs."""
    loader = Still()
    tuner = retuner(loader)
    feed(tuner, 0.0, 170, step_s=0.4)
    feed_until_changed(tuner, loader, 0.6)
    (said,) = feed(tuner, 0.5, 80, step_s=1.2)
    assert "prefetch_factor is as it was: the wait for data is 50% of a step, after 60%" in said
    assert loader.history == [(1, 4), (1, 8), (1, 4), (2, 4)]


def test_memory_is_never_filled() -> None:
    loader = Still(2, 4)
    tuner = retuner(loader, machine(free_bytes=GIB))
    feed(tuner, 0.0, 170, batch_bytes=20 << 20)  # 16 ahead would be 320 MB, over a quarter
    said = feed(tuner, 0.5, 49, batch_bytes=20 << 20)
    assert loader.history == [(2, 4), (3, 4)]
    assert "num_workers 2 -> 3" in said[0]


def test_worker_processes_are_bounded_by_cores_and_shared_memory() -> None:
    loader = Still(4, 4)
    tuner = retuner(loader, machine(shared_bytes=1000), is_fast=False)
    feed(tuner, 0.0, 170)
    (said,) = feed(tuner, 0.5, 100)
    assert "nothing more can be changed" in said
    assert loader.history == [(4, 4)]


@given(
    series=st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(1, 120)), min_size=1, max_size=30),
    start=st.tuples(st.integers(1, 4), st.integers(1, 16)),
)
@settings(max_examples=60)
def test_it_never_swings(series: list[tuple[float, int]], start: tuple[int, int]) -> None:
    """Whatever the waits do: few changes in all, and none is made again after it was taken back."""
    loader = Still(*start)
    tuner = retuner(loader)
    for share, count in series:
        feed(tuner, share, count)
    assert len(loader.history) <= 16
    taken_back = [
        (before, tried)
        for before, tried, after in zip(loader.history, loader.history[1:], loader.history[2:], strict=False)
        if after == before
    ]
    assert len(taken_back) == len(set(taken_back)) <= 2
    assert all(1 <= depth <= MOST_AHEAD and 1 <= num <= 8 for num, depth in loader.history)


class Trainer:
    global_step = 7


def test_the_callback_counts_steps_but_not_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = [0], Waits()
    monkeypatch.setattr(retuning, "perf_counter_ns", lambda: now[0])
    seen: list[tuple[float, float, int]] = []

    class Recorder:
        def add(self, *step: Any) -> str | None:
            seen.append(step)
            return "changed" if len(seen) == 2 else None

    notes: list[str] = []
    callback = Retune(Recorder(), waits, notes.append)  # type: ignore[arg-type]
    batch: Any = {"x": torch.zeros(10), "name": "text"}

    def step(wait_ms: int, work_ms: int) -> None:
        waits.total_ns += wait_ms * 1_000_000
        now[0] += (wait_ms + work_ms) * 1_000_000
        callback.on_train_batch_end(Trainer(), None, None, batch, 0)  # type: ignore[arg-type]

    step(500, 500)  # the first has no beginning
    step(1, 3)
    callback.on_validation_start(None, None)  # type: ignore[arg-type]
    step(900, 9000)
    step(2, 2)
    assert seen == [pytest.approx((0.001, 0.004, 40)), pytest.approx((0.002, 0.004, 40))]
    assert notes == ["step 7: changed"]


CHANGES = st.dictionaries(
    st.integers(0, 15), st.tuples(st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=8
)


@pytest.fixture(scope="module")
def expected(manifest: Any) -> list[dict[str, Any]]:
    from tests.train.tiny import config_of

    return batches_of(open_train(config_of(manifest, manifest.parent, num_workers=1)), {})


def open_train(config: dict[str, Any]) -> RunLoader:
    return open_loaders(load_config(config, environ={}), config).splits["train"]


def batches_of(
    loader: RunLoader, changes: dict[int, tuple[int, int]], num_epochs: int = 4
) -> list[dict[str, Any]]:
    found, number = [], 0
    for _ in range(num_epochs):
        for batch in loader:
            found.append({name: value.tolist() for name, value in batch.items()})
            if number in changes:
                num_workers, depth = changes[number]
                loader.loader.adjust(num_workers=num_workers, prefetch_factor=depth)
            number += 1
    loader.close()
    return found


@given(changes=CHANGES)
@settings(max_examples=12)
def test_batches_of_a_store_stay_the_same(
    changes: dict[int, tuple[int, int]], expected: list[dict[str, Any]], manifest: Any
) -> None:
    from tests.train.tiny import config_of

    loader = open_train(config_of(manifest, manifest.parent, num_workers=1))
    assert isinstance(loader.loader, FastDataLoader)
    assert batches_of(loader, changes) == expected


@pytest.mark.parametrize("changes", [{1: (2, 1)}, {3: (2, 3), 6: (1, 2)}])
def test_batches_of_raw_files_stay_the_same(
    changes: dict[int, tuple[int, int]], expected: list[dict[str, Any]], make_config: Make
) -> None:
    config = make_config(num_workers=1, use_fast_loader=False, persistent_workers=True)
    loader = open_train(config)
    assert isinstance(loader.loader, ResumableLoader)
    assert batches_of(loader, changes, num_epochs=2) == expected[:8]
    assert loader.loader.prefetching == list(changes.values())[-1]


def test_where_nothing_is_changed(make_config: Make) -> None:
    def may_change(**given: Any) -> bool:
        return can_adjust(open_train(make_config(**given)).loader)

    assert may_change(num_workers=1)
    assert not may_change(num_workers=0)
    assert may_change(num_workers=1, use_fast_loader=False)
    assert not may_change(num_workers=0, use_fast_loader=False)
    loader = open_train(make_config(num_workers=1, use_fast_loader=False))
    loader.loader.loader.dataset.transform = lambda sample: sample  # type: ignore[union-attr]
    assert not can_adjust(loader.loader)
    assert make_retune(loader, print) is None


def test_a_run_has_it_unless_it_is_turned_off(make_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Any] = []

    def add(self: Retuner, *step: Any) -> str | None:
        steps.append(step)
        return f"changed {len(steps)}" if len(steps) < 3 else None

    monkeypatch.setattr(Retuner, "add", add)
    result = fit(make_config(num_workers=1, epochs=2))
    assert [note for note in result.notes if "changed" in note] == ["step 2: changed 1", "step 3: changed 2"]
    count = len(steps)
    fit(make_config(num_workers=1, epochs=2, retune=False))
    assert len(steps) == count
