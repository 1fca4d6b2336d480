"""Laws of the diagnosis: no promise above the ceiling, one word at any speed, nothing for the healthy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doctor.made_records import made_record, scaled, simulate
from tests.doctor.test_diagnose import ILL

from flatout.doctor.diagnose import LEFT_BEHIND, MIN_GAIN, diagnose, order_of
from flatout.doctor.predict import PACKED, Work, best_workers, clipped
from flatout.doctor.record import DoctorRecord
from flatout.doctor.rules.means import outlying_s

IN_THE_MODEL = {"padding", "forward_once", "threads", "precision", "evaluate_less", "log_less", "pin_memory"}
"""Remedies that no data ceiling bounds."""
seconds = st.floats(1e-4, 0.5)


@st.composite
def records(draw: st.DrawFn) -> DoctorRecord:
    """Any training, with what an observer may or may not have seen."""
    stages = {name: draw(seconds) for name in ("fetch", "prepare", "collate")}
    workers = draw(st.integers(0, 20))
    facts: dict[str, Any] = {
        "draws_random": draw(st.sampled_from([None, True, False])),
        "opens_per_batch": draw(st.sampled_from([None, 16.0, 800.0])),
        "read_bytes_per_batch": draw(st.sampled_from([None, 1e5, 1e8])),
        "disk_bytes_per_batch": draw(st.sampled_from([None, 0.0, 1e8])),
        "hand_over_s": draw(st.sampled_from([None, 1e-4, 0.01])),
        "epoch_start_s": draw(st.sampled_from([None, 0.2])),
        "steps_per_epoch": 10.0,
        "num_threads": draw(st.integers(1, 4)),
        "trim_share": draw(st.sampled_from([None, 0.0, 0.7])),
        "trimmed_ratio": draw(st.sampled_from([None, 0.3, 1.2])),
        "slowdown": draw(st.sampled_from([None, 0.0, 0.4, 1.0])),
        "sent_s": draw(st.sampled_from([None, 0.0, 0.002])),
        "items_here_s": draw(st.sampled_from([None, 1e-4, 0.1])),
        "collate_here_s": draw(st.sampled_from([None, 1e-4, 0.1])),
        "stack_here_s": draw(st.sampled_from([None, 1e-4, 0.1])),
        "augment_here_s": draw(st.sampled_from([None, 1e-4, 0.1])),
        "evaluations": 0.1,
    }
    extra = {"evaluate": draw(st.sampled_from([0.0, 0.05])), "log": draw(st.sampled_from([0.0, 0.02]))}
    if workers:
        stages["hand_over"] = draw(st.floats(0.0, 0.01))
    return made_record(
        compute_s=draw(seconds),
        stages=stages,
        num_workers=workers,
        cpu_share=draw(st.floats(0.05, 1.0)),
        extra=extra,
        facts=facts,
        loader={
            "is_iterable": draw(st.booleans()),
            "worker_starts": workers * draw(st.integers(1, 5)),
            "slowest": draw(st.sampled_from([None, 2.0, 300.0])),
            "padding_share": draw(st.sampled_from([None, 0.1, 0.8])),
        },
        machine={"num_cores": draw(st.integers(1, 32))},
        num_steps=24,
    )


@given(records())
@settings(max_examples=150, deadline=None)
def test_no_promise_is_below_one_or_above_the_ceiling(record: DoctorRecord) -> None:
    assert record.ceiling is not None
    for remedy in diagnose(record).remedies:
        if remedy.predicted_gain is not None:
            assert remedy.predicted_gain >= MIN_GAIN
            if remedy.name not in IN_THE_MODEL:
                assert remedy.predicted_gain <= max(1.0, record.ceiling.gain) * (1 + 1e-9)


@given(records())
@settings(max_examples=150, deadline=None)
def test_nothing_stands_before_a_remedy_of_much_more(record: DoctorRecord) -> None:
    expected = [order_of(remedy) for remedy in diagnose(record).remedies]
    for place, gain in enumerate(expected):
        assert gain * LEFT_BEHIND >= max(expected[place:]) * (1 - 1e-9)


@given(records(), st.sampled_from([1 / 8, 0.5, 2.0, 16.0]))
@settings(max_examples=100, deadline=None)
def test_a_machine_that_is_slower_in_everything_gets_the_same_word(record: DoctorRecord, factor: float) -> None:
    here, there = diagnose(record).verdict, diagnose(scaled(record, factor)).verdict
    assert here is not None
    assert there is not None
    assert here.disease == there.disease


@pytest.mark.parametrize("disease", ILL)
def test_every_disease_keeps_its_name_at_any_speed(disease: str) -> None:
    for factor in (0.25, 8.0):
        verdict = diagnose(scaled(ILL[disease](), factor)).verdict
        assert verdict is not None
        assert verdict.disease == disease


@given(
    compute_s=st.floats(0.01, 1.0),
    share=st.floats(0.001, 0.06),
    workers=st.integers(0, 4),
    cpu_share=st.floats(0.1, 1.0),
    is_iterable=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_healthy_get_no_remedies(
    compute_s: float, share: float, workers: int, cpu_share: float, is_iterable: bool
) -> None:
    make_s = compute_s * share
    record = made_record(
        compute_s=compute_s,
        stages={"fetch": make_s / 3, "prepare": make_s / 3, "collate": make_s / 3},
        num_workers=workers,
        cpu_share=cpu_share,
        loader={"is_iterable": is_iterable},
        num_steps=40,
    )
    seen = diagnose(record)
    assert seen.verdict is not None
    assert (seen.verdict.disease, seen.remedies) == ("healthy", ())


def made_work(compute_s: float, make_s: float, **changes: float) -> Work:
    """Work that takes a core all the time, and nothing beside it."""
    given = {"num_workers": 0, "num_cores": 2, "hand_over_s": 0.0, "uneven_s": 0.0, "extra_s": 0.0} | changes
    return Work(compute_s, compute_s, make_s, make_s, make_s, **given)  # type: ignore[arg-type]


@given(
    make_s=st.floats(0.001, 0.2),
    compute_s=st.floats(0.001, 0.2),
    workers=st.integers(0, 8),
)
@settings(max_examples=100, deadline=None)
def test_the_model_agrees_with_a_simulation_batch_by_batch(
    make_s: float, compute_s: float, workers: int
) -> None:
    """With a core for everybody."""
    number = 400
    waits = simulate([make_s] * number, compute_s, workers)
    simulated = sum(waits[number // 2 :]) / (number - number // 2) + compute_s
    work = made_work(compute_s, make_s, num_workers=workers, num_cores=1000)
    assert work.step_s() == pytest.approx(simulated, rel=0.05)


def test_cores_bound_what_workers_can_do() -> None:
    crowded = made_work(0.01, 0.1, num_workers=8, num_cores=2)
    assert crowded.step_s() == pytest.approx(0.055 / PACKED)
    assert best_workers(crowded, 8) == 2


@given(st.floats(0.1, 100), st.floats(1.0, 50))
def test_clipped_stays_between(gain: float, most: float) -> None:
    assert 1.0 <= clipped(gain, most) <= most


def test_outlying_waits_are_those_above_the_median() -> None:
    assert outlying_s([1.0] * 8 + [5.0, 7.0], 2) == pytest.approx(1.0)
    assert outlying_s([], 3) == 0.0
    assert outlying_s([1.0, 1.0], 5) == 0.0


def side_by_side(
    compute_s: float, make_s: float, slowdown: float, num_steps: int = 400, ahead: int = 4
) -> float:
    """Mean step of a training thread and one worker, each the slower while the other is busy too."""
    compute_left, make_left, ready, done, now, half = 0.0, make_s, 0, 0, 0.0, 0.0
    while done < num_steps:
        if compute_left <= 0 and ready:
            ready, compute_left = ready - 1, compute_s
        is_training, is_making = compute_left > 0, ready < ahead
        rate = 1 / (1 + slowdown) if is_training and is_making else 1.0
        left = [compute_left] * is_training + [make_left] * is_making
        passed = min(left) / rate
        now += passed
        if is_training:
            compute_left -= passed * rate
            if compute_left <= 1e-12:
                compute_left, done = 0.0, done + 1
                half = now if done == num_steps // 2 else half
        if is_making:
            make_left -= passed * rate
            if make_left <= 1e-12:
                make_left, ready = make_s, ready + 1
    return (now - half) / (num_steps - num_steps // 2)


@given(compute_s=st.floats(0.001, 0.2), make_s=st.floats(0.001, 0.2), slowdown=st.floats(0.0, 1.0))
@settings(max_examples=60, deadline=None)
def test_two_cores_that_slow_each_other_down_agree_with_a_simulation(
    compute_s: float, make_s: float, slowdown: float
) -> None:
    work = made_work(compute_s, make_s, num_workers=1, slowdown=slowdown)
    assert work.step_s() == pytest.approx(side_by_side(compute_s, make_s, slowdown), rel=0.05)


works = st.builds(
    made_work,
    seconds,
    seconds,
    num_workers=st.integers(0, 12),
    num_cores=st.integers(1, 32),
    hand_over_s=st.floats(0.0, 0.01),
)


@given(works, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_neighbours_never_help(work: Work, one: float, other: float) -> None:
    less, more = sorted((one, other))
    free_s, slow_s, slower_s = (replace(work, slowdown=s).step_s() for s in (0.0, less, more))
    assert free_s <= slow_s * (1 + 1e-9)
    assert slow_s <= slower_s * (1 + 1e-9)


@given(compute_s=seconds, make_s=seconds, workers=st.integers(1, 8))
def test_two_cores_that_are_one_gain_nothing_by_workers(compute_s: float, make_s: float, workers: int) -> None:
    work = made_work(compute_s, make_s, num_workers=workers, slowdown=1.0)
    packed = PACKED if workers > 1 else 1.0  # three processes take turns on two cores
    assert work.step_s() == pytest.approx((compute_s + make_s) / packed)
    assert best_workers(work, workers) == 0


def test_what_is_made_here_takes_what_it_took_here() -> None:
    """Without workers no shared memory is asked for, and nobody is beside it."""
    work = replace(made_work(0.002, 0.001, num_workers=8, slowdown=0.4), here_s=0.0001)
    assert replace(work, num_workers=0).step_s() == pytest.approx(0.0021)
    assert best_workers(work, 8) == 0
