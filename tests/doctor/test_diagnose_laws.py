"""Laws of the diagnosis: no promise above the ceiling, one word at any speed, nothing for the healthy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doctor.made_records import made_record, scaled, simulate
from tests.doctor.test_diagnose import ILL

from flatout.doctor.diagnose import MIN_GAIN, diagnose
from flatout.doctor.predict import Work, best_workers, clipped
from flatout.doctor.record import DoctorRecord
from flatout.doctor.rules_means import outlying_s

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
    work = Work(compute_s, compute_s, make_s, make_s, 0.0, 0.0, 0.0, workers, num_cores=1000)
    assert work.step_s() == pytest.approx(simulated, rel=0.05)


def test_cores_bound_what_workers_can_do() -> None:
    crowded = Work(0.01, 0.01, 0.1, 0.1, 0.0, 0.0, 0.0, num_workers=8, num_cores=2)
    assert crowded.step_s() == pytest.approx(0.055)
    assert best_workers(crowded, 8) == 2


@given(st.floats(0.1, 100), st.floats(1.0, 50))
def test_clipped_stays_between(gain: float, most: float) -> None:
    assert 1.0 <= clipped(gain, most) <= most


def test_outlying_waits_are_those_above_the_median() -> None:
    assert outlying_s([1.0] * 8 + [5.0, 7.0], 2) == pytest.approx(1.0)
    assert outlying_s([], 3) == 0.0
    assert outlying_s([1.0, 1.0], 5) == 0.0
