"""Parts of the diagnosis: what kind of function it is, whose cores they are, what a number reads like."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.doctor.made_records import GIB, ceiling_of, made_record

from flatout.doctor.diagnose import diagnose
from flatout.doctor.predict import PACKED
from flatout.doctor.record import DoctorRecord, Exit, FunctionCost, Look, SyncPoint
from flatout.doctor.rules.case import look_at
from flatout.doctor.rules.compute import advise_threads
from flatout.doctor.rules.facts import Facts, read_facts
from flatout.doctor.rules.loop import logged_s
from flatout.doctor.rules.machine import machine_of
from flatout.doctor.rules.making import costliest, is_augmentation, kind_of
from flatout.doctor.rules.words import count, duration, place, share, times
from flatout.doctor.rules.workers import most_workers
from flatout.doctor.verdict_sentences import SENTENCES


@pytest.mark.parametrize(
    ("name", "file", "kind"),
    [
        ("decode_scan", "train.py", "decode"),
        ("zlib.decompress", "train.py", "decode"),
        ("augment_beat", "train.py", "augment"),
        ("RandomFlip.__call__", "/v/site-packages/torchio/x.py", "augment"),
        ("f", "/v/site-packages/scipy/signal/_signaltools.py", "augment"),
        ("f", "/v/site-packages/PIL/ImageFile.py", "decode"),
        ("f", "/home/random/openings/train.py", "other"),
    ],
)
def test_functions_are_told_apart_by_name_and_library(name: str, file: str, kind: str) -> None:
    assert kind_of(FunctionCost(name, file, 1, 0.1, 1.0)) == kind


def test_the_datasets_entry_is_not_the_costliest_function() -> None:
    functions = (
        FunctionCost("Set.__getitem__", "t.py", 1, 0.2, 1.0),
        FunctionCost("work", "t.py", 9, 0.1, 1.0),
    )
    found = costliest(look_at(made_record(loader={"functions": functions})))
    assert found is not None
    assert found.name == "work"


def test_random_draws_alone_are_no_augmentation_where_decoding_takes_the_time() -> None:
    functions = (FunctionCost("decode", "t.py", 1, 0.19, 1.0), FunctionCost("flip", "t.py", 9, 0.002, 1.0))
    stages = {"fetch": 0.0, "prepare": 0.2, "collate": 0.001}
    record = made_record(stages=stages, loader={"functions": functions}, facts={"draws_random": True})
    assert not is_augmentation(look_at(record))
    unnamed = replace(record, loaders=(replace(record.loaders[0], functions=()),))
    assert is_augmentation(look_at(unnamed))


def test_cores_that_others_take_are_not_counted() -> None:
    """Two workers on four cores that wait for a core as long as they run: others have the rest."""
    stages = {"fetch": 0.0, "prepare": 0.2, "collate": 0.0}
    record = made_record(
        compute_s=0.02,
        stages=stages,
        num_workers=2,
        loader={"cpu_seconds": 0.1},
        facts={"loader_cpu_wait_s": 0.1, "compute_cpu_s": 0.02},
    )
    case = look_at(record)
    assert case.num_cores == pytest.approx(1.2 / PACKED, rel=0.05)
    assert case.work.step_s() == pytest.approx(case.step_s, rel=0.05)
    assert case.io_s == pytest.approx(0.0)
    alone = replace(record, facts={**record.facts, "loader_cpu_wait_s": 0.0})
    assert look_at(alone).num_cores == 4
    assert look_at(alone).io_s == pytest.approx(0.1)


def test_a_sample_that_waited_for_a_core_is_no_slow_sample() -> None:
    """Its seconds do not explain the waiting; a slow one's do."""
    stages = {"fetch": 0.0, "prepare": 0.0001, "collate": 0.0001}
    record = made_record(stages=stages, num_workers=2, loader={"slowest": 900.0})
    steps = tuple(replace(step, seconds={**step.seconds, "wait": 0.05}) for step in record.steps)
    assert not look_at(replace(record, steps=steps)).has_slow_samples


def test_unknown_facts_are_left_aside() -> None:
    assert read_facts({"num_threads": 3, "colour": "blue"}) == Facts(num_threads=3)


def test_the_machine_of_a_record_is_that_of_the_platform_rules() -> None:
    machine = machine_of({"system": "win32", "num_cores": 8, "gpu": {"name": "A", "memory_bytes": GIB}})
    assert machine.is_windows
    assert machine.gpu is not None
    assert machine_of({}).num_cores == 1


@pytest.mark.parametrize(
    ("system", "cpu_share", "expected"), [("linux", 1.0, 4), ("linux", 0.1, 8), ("win32", 1.0, 0)]
)
def test_workers_are_bounded_by_platform_and_waiting(system: str, cpu_share: float, expected: int) -> None:
    stages = {"fetch": 0.1, "prepare": 0.0, "collate": 0.001}
    record = made_record(stages=stages, cpu_share=cpu_share, machine={"system": system})
    assert most_workers(look_at(record)) == expected


def test_numbers_read_well() -> None:
    assert [duration(s) for s in (123.4, 2.13, 0.0314, 0.0042, 0.00002)] == [
        "123 s",
        "2.1 s",
        "31 ms",
        "4.2 ms",
        "20 us",
    ]
    assert (share(0.617), times(1.234), times(2.61)) == ("62 %", "1.23x", "2.6x")
    assert (count(1, "file"), count(320, "file"), count(1.5, "file")) == ("1 file", "320 files", "1.5 files")
    assert place("/home/me/train.py", 12) == "train.py:12"


def test_what_is_computed_for_the_log_counts_as_logging() -> None:
    """The line of the log, and those around it in the same file."""
    lines = [
        {"file": "/home/me/train.py", "line": 11, "seconds_per_step": 0.004},
        {"file": "/home/me/train.py", "line": 40, "seconds_per_step": 0.004},
        {"file": "/home/me/model.py", "line": 9, "seconds_per_step": 0.004},
    ]
    facts = {"log_place": "train.py:9 logging", "other_lines": lines}
    record = made_record(extra={"log": 0.01, "other": 0.012}, facts=facts)
    point = SyncPoint("/home/me/train.py", 10, ".item()", 1.0, 0.002)
    assert logged_s(look_at(replace(record, sync_points=(point,)))) == pytest.approx(0.016)
    assert logged_s(look_at(replace(record, facts={}))) == pytest.approx(0.01)


def test_a_copy_between_processes_takes_no_longer_than_two_of_torchs_own_stackings() -> None:
    stages = {"fetch": 0.0, "prepare": 0.02, "collate": 0.001, "hand_over": 0.01}
    stacked = (FunctionCost("default_collate", "/v/site-packages/torch/collate.py", 1, 0.001, 1.0),)
    record = made_record(stages=stages, num_workers=2, loader={"functions": stacked})
    assert look_at(record).hand_over_s == pytest.approx(0.002)
    assert look_at(made_record(stages=stages, num_workers=2)).hand_over_s == pytest.approx(0.01)


def test_a_worker_more_takes_its_share_from_the_training_where_others_are_busy() -> None:
    """Without others it makes its batches beside the training; with them all get less of a core."""
    stages = {"fetch": 0.0, "prepare": 0.02, "collate": 0.0}
    facts = {"num_threads": 1, "loader_cpu_wait_s": 0.0}
    quiet = look_at(made_record(compute_s=0.02, stages=stages, facts=facts, machine={"num_cores": 2}))
    assert quiet.num_others == 0
    assert quiet.gain_in_model(num_workers=1) == pytest.approx(2.0)
    busy = look_at(
        made_record(
            compute_s=0.02,
            stages=stages,
            cpu_share=2 / 3,
            facts={**facts, "loader_cpu_wait_s": 0.02 / 3},
            machine={"num_cores": 2},
        )
    )
    assert busy.num_others == pytest.approx(2.0)
    assert busy.gain_in_model(num_workers=1) == pytest.approx(1.5)


def of_ranks(number: int, **changes: Any) -> DoctorRecord:
    stages = {"fetch": 0.01, "prepare": 0.09, "collate": 0.001}
    facts = {"num_processes": number, "num_threads": 1, **changes.pop("facts", {})}
    return diagnose(made_record(stages=stages, facts=facts, **changes))


def test_each_rank_is_advised_its_part_of_the_cores() -> None:
    alone, ranks = (
        next(each for each in of_ranks(number, machine={"num_cores": 8}).remedies if each.name == "workers")
        for number in (1, 4)
    )
    assert alone.settings["num_workers"] > 2
    assert ranks.settings["num_workers"] <= 2
    assert "(8 cores)" in alone.evidence
    assert "(2 cores for each of 4 ranks)" in ranks.evidence
    assert "of each rank" in ranks.cost


def test_each_rank_is_warned_by_its_part_of_the_cores() -> None:
    crowd = [of_ranks(number, num_workers=3) for number in (1, 2)]
    assert [any("num_workers" in text for text in each.warnings) for each in crowd] == [False, True]


def test_a_rank_computes_on_its_part_of_the_cores() -> None:
    found = look_at(of_ranks(2, facts={"num_threads": 2}))
    assert found.machine.num_cores == 2
    assert advise_threads(found) is None


def test_each_rank_preloads_into_its_part_of_the_memory() -> None:
    size = {"num_samples": 16, "batch_size": 1, "batch_bytes": GIB // 8}
    alone, ranks = (of_ranks(number, num_workers=1, loader=size) for number in (1, 4))
    assert "preload" in [each.name for each in alone.remedies]
    assert "preload" not in [each.name for each in ranks.remedies]


@pytest.mark.parametrize(("used", "is_full"), [(12 * GIB, False), (15 * GIB, True)])
def test_all_ranks_together_fill_the_memory(used: int, is_full: bool) -> None:
    record = replace(made_record(facts={"num_processes": 4}), looks=(Look(0.0, 1.0, used),))
    assert any("hold" in text for text in diagnose(record).warnings) == is_full


def test_without_workers_no_batch_comes_from_one() -> None:
    # What a worker would take for sending was tried out on a machine that others were busy on.
    stages = {"fetch": 0.001, "prepare": 0.02, "collate": 0.001}
    record = made_record(stages=stages, facts={"sent_s": 0.5})
    verdict = diagnose(record).verdict
    assert verdict is not None
    assert verdict.disease == "slow_decode"
    assert "worker" not in verdict.sentence


def test_what_may_be_noise_is_not_called_computation() -> None:
    record = made_record(stages={"prepare": 0.007}, num_workers=0)
    assert record.ceiling is not None
    unsure = replace(record, ceiling=replace(record.ceiling, low=1.0, high=9.0))
    verdict = diagnose(unsure).verdict
    assert verdict is not None
    assert verdict.disease == "unsure"
    assert verdict.sentence.startswith("Nothing is sure")
    assert "between 1.00x and 9.0x" in verdict.sentence
    assert not diagnose(unsure).remedies


@pytest.mark.parametrize(("high", "disease"), [(4.3, "unsure"), (1.2, "healthy")])
def test_a_long_wait_is_not_called_healthy_where_nothing_is_sure(high: float, disease: str) -> None:
    record = made_record(stages={"prepare": 0.003}, num_workers=0)
    assert record.ceiling is not None
    step_s = record.ceiling.step_s
    noisy = replace(record, ceiling=replace(record.ceiling, resident_step_s=step_s / 1.07, low=0.23, high=high))
    assert look_at(noisy).share_of("wait") > 0.1
    verdict = diagnose(noisy).verdict
    assert verdict is not None
    assert verdict.disease == disease


ENDS = ((0, None), (1, "ValueError: no"))


def test_a_crash_is_no_clean_bill() -> None:
    record = made_record(stages={"prepare": 0.00001}, num_workers=0)
    whole, crashed = (diagnose(replace(record, exit=Exit(code, False, error))).verdict for code, error in ENDS)
    assert whole is not None
    assert crashed is not None
    assert (whole.disease, crashed.disease) == ("healthy", "healthy")
    assert whole.sentence.startswith("Healthy")
    assert crashed.sentence.startswith("The script failed, see its own traceback; in the")


def test_what_takes_no_time_is_not_named() -> None:
    for stages, told in (
        ({"fetch": 0.0, "prepare": 0.05}, "preparing takes 50 ms a batch"),
        ({"fetch": 0.05, "prepare": 0.0}, "reading takes 50 ms a batch"),
        ({"fetch": 0.05, "prepare": 0.05}, "reading takes 50 ms and preparing 50 ms a batch"),
    ):
        remedies = diagnose(made_record(stages=stages)).remedies
        cache = next(each for each in remedies if each.name == "cache")
        assert cache.evidence.startswith(told)
    assert duration(0.0) == "no time"


@pytest.mark.parametrize(("sent_s", "disease"), [(0.008, "worker_restart"), (0.03, "hand_over")])
def test_of_restarts_and_the_way_from_a_worker_the_dearer_is_named(sent_s: float, disease: str) -> None:
    record = made_record(
        stages={"fetch": 0.0003, "collate": 0.0016},
        compute_s=0.012,
        num_workers=2,
        loader={"worker_starts": 60},
        facts={"sent_s": sent_s, "steps_per_epoch": 7, "epoch_start_s": 0.08},
    )
    steps = tuple(replace(each, seconds={**each.seconds, "wait": 0.03}) for each in record.steps)
    found = diagnose(replace(record, steps=steps, ceiling=ceiling_of(0.042, 0.012, 0.002)))
    assert found.verdict is not None
    assert found.verdict.disease == disease


def slowed(num_workers: int, **facts: Any) -> DoctorRecord:
    """A step of 53 ms: 33 of waiting, 20 of a computation that takes 0.3 with batches from memory."""
    record = made_record(compute_s=0.02, stages={"prepare": 0.2}, num_workers=num_workers, facts=facts)
    steps = tuple(replace(step, seconds={**step.seconds, "wait": 0.033}) for step in record.steps)
    return replace(record, steps=steps, ceiling=ceiling_of(0.053, 0.053 / 159, None))


@pytest.mark.parametrize(
    ("num_workers", "why"), [(2, "nobody makes batches beside it"), (0, "no batch is made in between")]
)
def test_a_gain_that_the_wait_does_not_explain_is_explained(num_workers: int, why: str) -> None:
    verdict = diagnose(slowed(num_workers)).verdict
    assert verdict is not None
    assert verdict.sentence.startswith("Training waits for data 62 % of the time")
    assert (
        "it would be 159x as fast: of a step of 53 ms the 33 ms of waiting would go, and the other 20 ms would "
        f"become 0.3 ms, which is what they take when {why}." in verdict.sentence
    )


def test_a_gain_that_the_wait_explains_is_just_told() -> None:
    verdict = diagnose(made_record(stages={"prepare": 0.2}, num_workers=2)).verdict
    assert verdict is not None
    assert verdict.sentence.endswith("with a perfect loader it would be 5.0x as fast.")


def test_a_device_that_computes_during_the_wait_is_told() -> None:
    record = replace(slowed(2, device="cuda:0"), ceiling=ceiling_of(0.053, 0.04, None))
    verdict = diagnose(record).verdict
    assert verdict is not None
    assert "the device computes during the wait, and needs 40 ms for a step all the same" in verdict.sentence


@pytest.mark.parametrize(("high", "is_vague"), [(222.0, True), (6.0, False)])
def test_a_ceiling_that_nobody_knows_closely_is_told_by_both_ends(high: float, is_vague: bool) -> None:
    record = made_record(stages={"prepare": 0.2}, num_workers=2)
    assert record.ceiling is not None
    verdict = diagnose(replace(record, ceiling=replace(record.ceiling, low=2.5, high=high))).verdict
    own = diagnose(record).verdict
    assert verdict is not None
    assert own is not None
    assert verdict.disease == own.disease
    assert ("it would be 5.0x as fast" in verdict.sentence) is not is_vague
    assert ("between 2.5x and 222x as fast: what was measured varies" in verdict.sentence) is is_vague


def test_what_the_data_path_could_give_computation_is_told_by_both_ends_where_it_is_vague() -> None:
    record = made_record(compute_s=0.05)
    assert record.ceiling is not None
    vague = replace(record, ceiling=replace(record.ceiling, low=1.0, high=4.0))
    told = SENTENCES["compute"](look_at(vague))
    assert "94 % of a step is computation" in told
    assert "varied too much to say it, between 1.00x and 4.0x" in told
    assert "could gain more than" not in told
    assert "could gain more than 1.06x" in SENTENCES["compute"](look_at(record))
