"""What remedies are promised to give, from what was measured part by part."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.doctor.made_records import ceiling_of, made_record
from tests.doctor.test_diagnose import (
    augmentation,
    few_workers,
    huge_collate,
    padding,
    slow_decode,
    too_many_workers,
    worker_restart,
)

from flatout.doctor.diagnose import diagnose
from flatout.doctor.record import DoctorRecord
from flatout.doctor.rules.case import look_at
from flatout.doctor.rules.workers import advise_persistent


def gains(record: DoctorRecord) -> dict[str, float]:
    return {remedy.name: remedy.predicted_gain or 0.0 for remedy in diagnose(record).remedies}


def with_facts(record: DoctorRecord, **facts: float) -> DoctorRecord:
    return replace(record, facts={**record.facts, **facts})


def on_two_cores(record: DoctorRecord) -> DoctorRecord:
    return replace(record, machine={**record.machine, "num_cores": 2})


def test_a_worker_on_half_a_core_takes_from_the_training() -> None:
    """20 ms and 20 ms: 40 one after the other, 20 with two cores, 28 with two that slow each other by 40 %."""
    record = on_two_cores(few_workers())
    assert gains(record)["workers"] == pytest.approx(2.0, rel=0.02)
    assert gains(with_facts(record, slowdown=0.4))["workers"] == pytest.approx(40 / 28, rel=0.02)
    assert "workers" not in gains(with_facts(record, slowdown=1.0))


def test_threads_slow_each_other_down_as_processes_do() -> None:
    record = on_two_cores(made_record(compute_s=0.1, facts={"num_threads": 1}))
    free, halved = gains(record)["threads"], gains(with_facts(record, slowdown=0.4))["threads"]
    assert halved == pytest.approx(1 + (free - 1) * 0.4, rel=0.1)


def test_core_seconds_of_workers_that_stood_in_each_others_way_are_reckoned_down() -> None:
    """Four workers and the training on four cores: three were busy beside each."""
    record = slow_decode()
    alone, beside = look_at(record), look_at(with_facts(record, slowdown=0.2))
    assert beside.hindrance == pytest.approx(1.6)
    assert beside.make_cpu_s == pytest.approx(alone.make_cpu_s / 1.6)
    assert beside.work.step_s() == pytest.approx(alone.work.step_s(), rel=0.1)  # the same step either way


def test_without_workers_only_the_hits_and_the_collate_function_are_left() -> None:
    """What the collate function took in a worker, with its shared memory, does not tell what it takes here."""
    record = slow_decode()
    step_s, best_s = look_at(record).step_s, look_at(record).compute_s
    found = gains(with_facts(record, items_here_s=0.2, collate_here_s=0.0001))["preload"]
    hit_s = 16 * 10e-6 + (1 << 20) / 4e9
    assert found == pytest.approx(step_s / (best_s + hit_s + 0.0001))
    assert found > gains(record)["preload"]


def test_a_crowd_is_compared_with_batches_made_here() -> None:
    record = with_facts(too_many_workers(), items_here_s=0.00005, collate_here_s=0.00005)
    seen = diagnose(record)
    assert seen.verdict is not None
    assert seen.verdict.disease == "too_many_workers"
    assert seen.remedies[0].settings == {"num_workers": 0}
    assert seen.remedies[0].predicted_gain == pytest.approx(0.008 / 0.0021)


def test_slow_samples_are_too_seldom_for_what_was_made_here() -> None:
    record = made_record(
        compute_s=0.02,
        stages={"fetch": 0.0, "prepare": 0.1, "collate": 0.0},
        num_workers=2,
        loader={"slowest": 1600.0},
        facts={"items_here_s": 0.001, "collate_here_s": 0.0},
    )
    assert look_at(record).here_s == pytest.approx(0.1)


def test_a_collate_function_of_whole_arrays_takes_a_few_times_what_stacking_took() -> None:
    record = huge_collate()
    assert look_at(record).compute_s == pytest.approx(0.02)
    much = gains(with_facts(record, stack_here_s=0.02))["collate"]
    little = gains(with_facts(record, stack_here_s=0.0001))["collate"]
    assert much < little
    assert "collate" not in gains(with_facts(record, stack_here_s=0.06))  # more than it takes now


def test_batchwise_augmentation_takes_what_it_took_here() -> None:
    record = with_facts(augmentation(), num_threads=1)
    step_s = look_at(record).step_s
    cheap, dear = (gains(with_facts(record, augment_here_s=s))["batch_augment"] for s in (0.0001, 0.01))
    assert cheap == pytest.approx(step_s / 0.0201, rel=0.02)
    assert dear == pytest.approx(step_s / 0.03, rel=0.02)


def test_padding_costs_what_shorter_batches_were_seen_to_save() -> None:
    """Forward and backward are 90 % of 20 ms; at 40 % of the length they took a quarter."""
    record = with_facts(padding(), trimmed_ratio=0.25, sorted_ratio=0.2)
    step_s = look_at(record).step_s
    assert gains(record)["padding"] == pytest.approx(step_s / (step_s - 0.75 * 0.9 * 0.02))
    sorted_only = with_facts(record, trim_share=0.0)
    assert gains(sorted_only)["padding"] == pytest.approx(step_s / (step_s - 0.8 * 0.9 * 0.02))


def test_workers_in_time_are_left_alone_unless_they_take_much_from_the_training() -> None:
    """Always in time: what it takes from the training is seen in the ceiling only."""

    def word(make_s: float, sent_s: float = 0.0) -> str:
        stages = {"fetch": 0.0, "prepare": make_s, "collate": 0.0}
        facts = {"slowdown": 0.4, "num_threads": 1, "draws_random": False, "sent_s": sent_s}
        record = made_record(
            compute_s=0.02, stages=stages, num_workers=1, facts=facts, machine={"num_cores": 2}
        )
        slowed = 0.02 + 0.4 * make_s + sent_s
        steps = tuple(replace(step, seconds={"wait": 0.0, "forward": slowed}) for step in record.steps)
        verdict = diagnose(replace(record, steps=steps, ceiling=ceiling_of(slowed, 0.02, None))).verdict
        return verdict.disease if verdict else ""

    assert word(0.007) == "healthy"
    assert word(0.019) == "healthy"
    assert word(0.019, sent_s=0.008) == "slow_decode"


def test_workers_that_stay_alive_still_begin_with_the_epoch() -> None:
    record = worker_restart()
    slow = replace(record, loaders=(replace(record.loaders[0], seconds={"prepare": 0.016}, cpu_seconds=0.016),))
    case = look_at(slow)
    after_s = replace(case.work, uneven_s=0.016 / 8).step_s()
    assert gains(slow)["persistent"] == pytest.approx(min(case.step_s / after_s, case.ceiling))


def test_restarts_take_little_else_with_them() -> None:
    """One every 80 steps is 3 % of all time, however much a perfect loader would give."""
    record = worker_restart()
    steps = tuple(replace(step, seconds={**step.seconds, "wait": 0.06}) for step in record.steps)
    busy = replace(with_facts(record, steps_per_epoch=80.0), steps=steps, ceiling=ceiling_of(0.08, 0.01, None))
    case = look_at(busy)
    assert case.restart_s == pytest.approx(0.2 / 80)
    found = advise_persistent(case)
    assert found is not None
    assert found.predicted_gain == pytest.approx(0.08 / (0.08 - 1.5 * 0.2 / 80))


def test_the_way_from_a_worker_is_what_sent_batches_took_more() -> None:
    """Half of it in the training thread, half beside it: both together are what was measured."""
    record = with_facts(on_two_cores(few_workers()), slowdown=0.5, sent_s=0.003, hand_over_s=0.1)
    case = look_at(record)
    assert case.hand_over_s == pytest.approx(0.004)
    idle = replace(case.work, num_workers=1, make_s=0.0, make_cpu_s=0.0)
    assert idle.step_s() == pytest.approx(case.compute_s + 0.003)
