"""Starts of workers: counted once an epoch, whether a measured step shows one or not."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import sleep
from typing import Any

import pytest
from tests.doctor import scripts
from tests.doctor.running import run
from torch.utils.data import DataLoader, Dataset

from flatout.doctor.ceiling.measure import ceiling_of
from flatout.doctor.ceiling.plan import _start_anew
from flatout.doctor.ceiling.sources import LoaderSource
from flatout.doctor.child.watch import WATCH
from flatout.doctor.diagnose import diagnose
from flatout.doctor.observe.settings import ObserveSettings
from flatout.doctor.rules.case import look_at
from flatout.doctor.steps.cut import Steps, steps_of
from flatout.doctor.steps.epochs import epochs_of
from flatout.doctor.steps.phases import Phases
from flatout.doctor.steps.trace import BlockRow, Next, Trace

SHORT_EPOCHS = (
    scripts.HEAD
    + """
def start(number):
    time.sleep(0.4)


loader = DataLoader(Slow(8 * 40, wait=0.0), batch_size=8, num_workers=2, worker_init_fn=start)
for epoch in range(100):
    for batch in loader:
        train_step(batch)
"""
)
LOADER = {"number": 0, "is_train": True, "num_batches": 9, "num_workers": 2, "persistent_workers": False}


def made_trace(num_steps: int, length: int, *, start_s: float = 5.0, wait_s: float = 0.1, **more: Any) -> Trace:
    """Steps of a second each, beside the waits; an epoch begins with `start_s`, half of it in `iter`."""
    trace = Trace(1, loaders=[{**LOADER, "epoch_steps": length, **more}])
    now = 0.0
    for number in range(num_steps):
        waited_s = wait_s
        if number % length == 0:
            if number:
                trace.nexts.append(Next(now, now, 0, 0))
            trace.iters.append((now, now + start_s / 2, 0))
            now, waited_s = now + start_s / 2, start_s / 2
        trace.nexts.append(Next(now, now + waited_s, 0, 4))
        now += waited_s + 1.0
    trace.observed_until = now
    return trace


def cut(trace: Trace, num_warmup: int = 1) -> Steps:
    return steps_of(trace, Phases(trace), num_warmup)


def blocks_of(length: int, restarted: set[int]) -> tuple[list[BlockRow], list[tuple[str, float, float]]]:
    """Four rounds of 10 steps; an epoch of the script's loader ends in some of its blocks, for 5 seconds."""
    rows, restarts, now = [], [], 1000.0
    for number in range(4):
        for name, step_s in (("base", 1.1), ("resident", 1.0)):
            begins = name == "base" and number in restarted
            seconds = 10 * step_s + (5.0 if begins else 0.0)
            if begins:
                restarts.append(("base", now + 1.0, now + 6.0))
            rows.append(BlockRow(name, number, now, now + seconds, 10, 0.0))
            now += seconds
    return rows, restarts


def test_starts_that_no_measured_step_shows_are_counted() -> None:
    trace = made_trace(21, 20)
    assert epochs_of(trace, cut(trace)).start_s == pytest.approx(5.0)
    trace = made_trace(15, 20)
    trace.restarts = [("base", 0.0, 4.0), ("base", 10.0, 15.0), ("base", 20.0, 29.0), ("cache", 30.0, 31.0)]
    found = epochs_of(trace, cut(trace))
    assert found.start_s == pytest.approx(5.0)  # one that others disturbed does not move it
    assert found.unseen_s == pytest.approx((5.0 - 0.1) / 20)


@pytest.mark.parametrize("num_steps", [21, 30, 41, 60])
def test_the_long_run_does_not_depend_on_how_many_starts_were_seen(num_steps: int) -> None:
    trace = made_trace(num_steps, 20)
    steps = cut(trace)
    seen_s = sum(step.seconds["wait"] for step in steps.steps) / len(steps.steps)
    assert seen_s + epochs_of(trace, steps).unseen_s == pytest.approx(0.1 * 19 / 20 + 5.0 / 20)


def test_epochs_that_are_broken_off_are_as_long_as_they_were() -> None:
    trace = made_trace(41, 10)
    trace.loaders[0]["epoch_steps"] = 500
    assert epochs_of(trace, cut(trace)).length == pytest.approx(10)


@pytest.mark.parametrize("more", [{"num_workers": 0}, {"persistent_workers": True}])
def test_without_workers_that_start_nothing_is_added(more: dict[str, Any]) -> None:
    trace = made_trace(30, 20, **more)
    assert epochs_of(trace, cut(trace)).unseen_s == 0.0


@pytest.mark.parametrize("restarted", [{0}, {1, 2}, {0, 1, 2, 3}])
def test_the_ceiling_is_the_same_whichever_blocks_an_epoch_ended_in(restarted: set[int]) -> None:
    trace = made_trace(15, 20)
    trace.blocks, trace.restarts = blocks_of(20, restarted)
    steps, phases = cut(trace), Phases(trace)
    found = ceiling_of(trace, steps, phases)
    assert found is not None
    assert found.gain == pytest.approx(1.1 + 5.0 / 20)
    assert found.high == pytest.approx(found.low)


MAKE_S = 0.4


class Slow(Dataset[int]):
    """Two samples, each made in `MAKE_S`."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        sleep(MAKE_S)
        return index


def test_a_start_that_is_made_takes_as_long_as_one_that_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is stopped in the middle of a batch ends it first; at the end of an epoch it has none."""
    rows: list[Any] = []
    monkeypatch.setattr(WATCH, "add", rows.append)
    loader = DataLoader(Slow(), batch_size=1, num_workers=1)
    base = LoaderSource("base", lambda: iter(loader), next)
    for _ in range(len(loader) + 1):
        base.next()
    _start_anew(base)
    base.close()
    came_s, *made_s = [end - start for _, _, start, end in rows]
    assert len(made_s) > 1
    assert median(made_s) == pytest.approx(came_s, abs=MAKE_S / 2)


def test_a_wait_that_is_told_and_a_ceiling_that_is_told_are_of_the_same_steps(tmp_path: Path) -> None:
    """Epochs that are longer than the observation: the starts are in the replay alone."""
    settings = ObserveSettings(num_steps=20, num_warmup=5)
    record = diagnose(run(tmp_path, SHORT_EPOCHS, settings=settings))
    assert record.loaders[0].worker_starts == 2, "the observation saw the first epoch alone"
    assert record.verdict is not None
    assert record.verdict.disease == "worker_restart"
    gains = {remedy.name: remedy.predicted_gain or 0.0 for remedy in record.remedies}
    assert gains["persistent"] > 1.1
    case = look_at(record)
    assert case.share_of("wait") == pytest.approx(1 - 1 / case.ceiling, abs=0.15)
    assert record.facts["epoch_start_s"] > 0.4
