"""Each disease of a made-up record is named, with its cure first."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.doctor.made_records import GIB, ceiling_of, made_record

from flatout.doctor.diagnose import CURE, diagnose
from flatout.doctor.record import DoctorRecord, Exit, FunctionCost, Look, Remedy, SyncPoint, read_record
from flatout.doctor.verdict import DISEASES
from flatout.doctor.verdict_sentences import SENTENCES

DECODE = {"fetch": 0.002, "prepare": 0.2, "collate": 0.002}
BUSY_WORKERS = {"num_workers": 4, "persistent_workers": True}


def function(name: str, seconds: float, file: str = "/home/me/train.py") -> FunctionCost:
    return FunctionCost(name, file, 12, seconds, 16.0)


def few_workers() -> DoctorRecord:
    return made_record(
        compute_s=0.02, stages={"fetch": 0.002, "prepare": 0.017, "collate": 0.001}, facts={"num_threads": 1}
    )


def slow_decode() -> DoctorRecord:
    functions = (function("decode_scan", 0.19), function("Scans.__getitem__", 0.2))
    return made_record(
        stages=DECODE, num_workers=4, loader={"functions": functions}, facts={"draws_random": False}
    )


def augmentation() -> DoctorRecord:
    functions = (
        function("augment_beat", 0.19),
        function("filtfilt", 0.1, "/x/site-packages/scipy/signal/a.py"),
    )
    return made_record(
        stages=DECODE, num_workers=4, loader={"functions": functions}, facts={"draws_random": True}
    )


def small_files() -> DoctorRecord:
    facts = {"opens_per_batch": 640.0, "read_bytes_per_batch": 640 * 2000.0, "draws_random": False}
    stages = {"fetch": 0.15, "prepare": 0.03, "collate": 0.002}
    return made_record(stages=stages, num_workers=4, facts=facts)


def cold_disk() -> DoctorRecord:
    facts = {"read_bytes_per_batch": 6e7, "disk_bytes_per_batch": 6e7, "opens_per_batch": 16.0}
    stages = {"fetch": 0.3, "prepare": 0.01, "collate": 0.002}
    return made_record(stages=stages, num_workers=4, cpu_share=0.1, facts=facts)


def huge_collate() -> DoctorRecord:
    return made_record(stages={"fetch": 0.001, "prepare": 0.004, "collate": 0.2}, num_workers=4)


def slow_sample() -> DoctorRecord:
    makes = [0.8 if number % 6 == 5 else 0.008 for number in range(240)]
    stages = {"fetch": 0.0, "prepare": sum(makes) / len(makes), "collate": 0.0001}
    return made_record(
        compute_s=0.02,
        stages=stages,
        makes_s=makes,
        num_workers=2,
        loader={"slowest": 1600.0, "num_workers": 2},
    )


def slow_iterable() -> DoctorRecord:
    return made_record(stages={"fetch": 0.0, "prepare": 0.02, "collate": 0.001}, loader={"is_iterable": True})


def too_many_workers() -> DoctorRecord:
    """Cheap batches; each waits for its way from one of many processes."""
    stages = {"fetch": 0.0, "prepare": 0.0005, "collate": 0.0005, "hand_over": 0.004}
    record = made_record(compute_s=0.002, stages=stages, num_workers=32, num_steps=100)
    steps = tuple(replace(s, seconds={**s.seconds, "wait": 0.006}) for s in record.steps)
    return replace(record, steps=steps, ceiling=ceiling_of(0.008, 0.002, None))


def worker_restart() -> DoctorRecord:
    stages = {"fetch": 0.0, "prepare": 0.001, "collate": 0.001}
    makes = [0.2 if number % 8 == 0 else 0.002 for number in range(80)]
    return made_record(
        stages=stages,
        makes_s=makes,
        num_workers=2,
        loader={"worker_starts": 20},
        facts={"epoch_start_s": 0.2, "steps_per_epoch": 8.0},
    )


def evaluation() -> DoctorRecord:
    return made_record(extra={"evaluate": 0.03}, facts={"evaluations": 0.25})


def logging() -> DoctorRecord:
    return made_record(extra={"log": 0.012}, facts={"log_calls": 7.0, "log_place": "train.py:9 info"})


def padding() -> DoctorRecord:
    return made_record(loader={"padding_share": 0.8}, facts={"trim_share": 0.6, "sort_share": 0.7})


def compute() -> DoctorRecord:
    repeated = {"module": "Net", "calls_per_step": 2.0, "seconds_per_step": 0.003, "file": "a.py", "line": 3}
    return made_record(facts={"repeated_forward": repeated})


ILL: dict[str, Callable[[], DoctorRecord]] = {
    "too_few_workers": few_workers,
    "slow_decode": slow_decode,
    "augmentation": augmentation,
    "small_files": small_files,
    "cold_disk": cold_disk,
    "huge_collate": huge_collate,
    "slow_sample": slow_sample,
    "slow_iterable": slow_iterable,
    "too_many_workers": too_many_workers,
    "worker_restart": worker_restart,
    "evaluation": evaluation,
    "logging": logging,
    "padding": padding,
    "compute": compute,
}


@pytest.mark.parametrize("disease", ILL)
def test_the_disease_is_named_and_its_cure_stands_first(disease: str) -> None:
    seen = diagnose(ILL[disease]())
    assert seen.verdict is not None
    assert seen.verdict.disease == disease, seen.verdict.sentence
    assert seen.remedies[0].name in CURE.get(disease, ("forward_once",))
    gain = seen.remedies[0].predicted_gain
    assert gain is not None
    assert gain > 1.05


@pytest.mark.parametrize(
    ("gain", "wanted"), [(1.9, "workers"), (3.0, "workers"), (4.0, "cache"), (34.0, "cache")]
)
def test_a_cure_stands_first_unless_another_remedy_leaves_it_behind(
    gain: float, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Remedy("workers", "", 1.95, "", ""), Remedy("cache", "", gain, "", "")]
    monkeypatch.setattr("flatout.doctor.diagnose._all", lambda case: iter(found))
    seen = diagnose(few_workers())
    assert seen.verdict is not None
    assert seen.verdict.disease == "too_few_workers"
    assert {remedy.name for remedy in seen.remedies} == {"workers", "cache"}
    assert seen.remedies[0].name == wanted


def test_a_healthy_training_gets_a_clean_bill_and_no_advice() -> None:
    seen = diagnose(made_record(compute_s=0.05))
    assert seen.verdict is not None
    assert seen.verdict.disease == "healthy"
    assert seen.remedies == ()
    assert seen.warnings == ()


def test_every_disease_has_its_sentence_and_every_cure_a_disease() -> None:
    assert set(SENTENCES) == set(DISEASES)
    assert set(CURE) < set(DISEASES)


def test_too_few_steps_say_nothing() -> None:
    stages = {"fetch": 0.1, "prepare": 0.1}
    record = made_record(stages=stages, num_steps=4)
    for exit_, told in (
        (record.exit, "Only 4 training steps could be measured: too few"),
        (Exit(1, False, "Traceback"), "The script failed, see its own traceback; only 4 training steps could"),
    ):
        seen = diagnose(replace(record, exit=exit_))
        assert (seen.verdict and seen.verdict.disease, seen.remedies) == ("unknown", ())
        assert seen.verdict is not None
        assert seen.verdict.sentence.startswith(told)
        assert seen.exit == exit_
    assert diagnose(made_record(stages=stages, num_steps=5)).remedies
    failed = diagnose(replace(record, steps=(), loaders=(), ceiling=None, exit=Exit(1, False, "Traceback")))
    assert failed.verdict is not None
    assert "traceback" in failed.verdict.sentence


def test_no_ceiling_and_no_loader_are_survived() -> None:
    record = replace(few_workers(), ceiling=None)
    seen = diagnose(record)
    assert seen.verdict is not None
    assert seen.verdict.disease == "too_few_workers"
    bare = diagnose(replace(record, loaders=(), facts={}, machine={}))
    assert bare.verdict is not None


def test_workers_are_predicted_by_the_slower_of_both_sides() -> None:
    """0.04 s one after the other; side by side the slower side rules."""
    (first, *_) = diagnose(few_workers()).remedies
    assert first.predicted_gain == pytest.approx(2.0, rel=0.02)
    assert first.settings["num_workers"] in (1, 2)
    assert "num_workers=" in first.how


def test_cores_that_are_busy_already_are_counted() -> None:
    """One core cannot make batches and train at the same time."""
    record = made_record(
        compute_s=0.02, stages={"fetch": 0.0, "prepare": 0.02, "collate": 0.0}, machine={"num_cores": 1}
    )
    assert all(remedy.name != "workers" for remedy in diagnose(record).remedies)


def test_waiting_for_a_disk_takes_no_core() -> None:
    def gain(cpu_share: float) -> float:
        stages = {"fetch": 0.1, "prepare": 0.0, "collate": 0.001}
        record = made_record(compute_s=0.02, stages=stages, cpu_share=cpu_share, machine={"num_cores": 2})
        found = {remedy.name: remedy.predicted_gain for remedy in diagnose(record).remedies}
        return found["workers"] or 0.0

    assert gain(0.05) > 1.5 * gain(1.0)


def test_random_augmentation_is_not_put_into_a_cache() -> None:
    remedies = {remedy.name: remedy for remedy in diagnose(augmentation()).remedies}
    assert "cache" not in remedies or remedies["cache"].settings == {}
    assert remedies["batch_augment"].changes_results
    assert "preload" not in remedies


def test_no_function_takes_more_of_a_batch_than_the_batch() -> None:
    record = slow_decode()
    (loader,) = record.loaders
    longer = tuple(replace(each, seconds_per_batch=9.0) for each in loader.functions)
    (cache,) = [
        each
        for each in diagnose(replace(record, loaders=(replace(loader, functions=longer),))).remedies
        if each.name == "cache"
    ]
    assert "9.0 s" not in cache.evidence
    assert "202 ms of it" in cache.evidence


def test_a_cache_says_what_it_takes() -> None:
    first = next(remedy for remedy in diagnose(slow_decode()).remedies if remedy.name == "cache")
    assert "250.0 MiB" in first.cost  # 4000 samples of 64 KiB
    assert "decode_scan (train.py:12)" in first.evidence
    assert first.settings == {"cache": True}


@pytest.mark.parametrize("draws", [None, False, True])
def test_other_workers_draw_other_random_numbers(draws: bool | None) -> None:
    for made, name in ((few_workers(), "workers"), (worker_restart(), "persistent")):
        record = diagnose(replace(made, facts={**made.facts, "draws_random": draws}))
        found = {remedy.name: remedy for remedy in record.remedies}
        assert found[name].changes_results is bool(draws)


def test_windows_gets_no_workers_and_a_warning_about_those_it_has() -> None:
    windows = {"system": "win32"}
    record = made_record(stages=DECODE, machine=windows)
    assert all(remedy.name != "workers" for remedy in diagnose(record).remedies)
    record = made_record(num_workers=2, machine=windows)
    assert any("Windows" in warning for warning in diagnose(record).warnings)


def test_more_workers_than_cores_or_sixteen_are_warned_of() -> None:
    assert any("more than 4" in text for text in diagnose(made_record(num_workers=8)).warnings)
    many = made_record(num_workers=20, machine={"num_cores": 64})
    assert any("more than 16" in text for text in diagnose(many).warnings)


@pytest.mark.parametrize(("slowdown", "told"), [(0.0, False), (1.0, True)])
def test_why_no_more_workers_are_advised(slowdown: float, told: bool) -> None:
    """On two cores of which the second gives nothing they are not, and that is said."""
    stages = {"fetch": 0.004, "prepare": 0.05, "collate": 0.001}
    facts = {"slowdown": slowdown, "num_threads": 1}
    record = made_record(stages=stages, compute_s=0.013, machine={"num_cores": 2}, facts=facts)
    seen = diagnose(record)
    assert ("workers" in [remedy.name for remedy in seen.remedies]) != told
    found = [text for text in seen.warnings if "more workers are not advised" in text]
    assert len(found) == told
    for text in found:  # they would be in the way: less than 1, and not 1
        assert re.search(
            r"with 2 a step is predicted to be 0\.[789]\dx as fast: what another core does takes 100 %", text
        )


def test_nobody_asks_for_workers_where_they_are_not_the_matter() -> None:
    for record in (made_record(compute_s=0.05), made_record(num_steps=2), few_workers()):
        assert not any("more workers" in text for text in diagnose(record).warnings)


def test_shared_memory_that_is_too_small_is_warned_of() -> None:
    record = made_record(num_workers=4, loader={"batch_bytes": 1 << 26}, machine={"shared_bytes": 64 << 20})
    assert any("/dev/shm" in text for text in diagnose(record).warnings)


def test_memory_that_is_nearly_full_is_warned_of() -> None:
    record = replace(made_record(), looks=(Look(0.0, 1.0, rss_bytes=15 * GIB),))
    assert any("memory" in text for text in diagnose(record).warnings)


def test_a_gpu_that_computes_is_turned_to_precision_compile_and_batch_size() -> None:
    record = made_record(
        compute_s=0.1,
        facts={"device": "cuda:0", "precision": "float32", "is_deterministic": True, "has_attention": True},
        machine={"gpu": {"name": "A", "memory_bytes": 24 * GIB}},
    )
    looks = (Look(0.0, 1.0, GIB, device_utilisation=0.97, device_bytes=9 * GIB),)
    seen = diagnose(replace(record, looks=looks))
    assert seen.verdict is not None
    assert seen.verdict.disease == "compute"
    assert seen.verdict.sentence.startswith("Compute-bound")
    names = [remedy.name for remedy in seen.remedies]
    assert names[0] == "precision"
    assert {"compile", "batch_size", "cudnn", "model"} <= set(names)
    attention = next(remedy for remedy in seen.remedies if remedy.name == "model")
    assert "attention" in attention.how


@pytest.mark.parametrize(("used", "advice"), [(9, "larger"), (23, "smaller"), (20.5, "")])
def test_the_devices_memory_keeps_a_tenth_to_a_fifth_free(used: float, advice: str) -> None:
    record = made_record(
        compute_s=0.1,
        facts={"device": "cuda", "precision": "float32"},
        machine={"gpu": {"name": "A", "memory_bytes": 24 * GIB}},
    )
    looks = (Look(0.0, 1.0, GIB, device_utilisation=0.9, device_bytes=int(used * GIB)),)
    remedies = {remedy.name: remedy for remedy in diagnose(replace(record, looks=looks)).remedies}
    assert (advice in remedies["batch_size"].how) if advice else "batch_size" not in remedies


def test_synchronisation_points_are_shown_where_the_device_is_idle() -> None:
    record = made_record(
        compute_s=0.1,
        facts={"device": "cuda", "precision": "mixed", "is_compiled": True},
        machine={"gpu": {"name": "A", "memory_bytes": 24 * GIB}},
    )
    point = SyncPoint("/home/me/train.py", 31, ".item()", 1.0, 0.02)
    looks = (Look(0.0, 1.0, GIB, device_utilisation=0.6),)
    seen = diagnose(replace(record, looks=looks, sync_points=(point,)))
    assert seen.verdict is not None
    assert seen.verdict.disease == "compute"
    assert any(remedy.name == "synchronise" and "train.py:31" in remedy.evidence for remedy in seen.remedies)


def test_one_thread_of_four_is_noticed() -> None:
    seen = diagnose(made_record(compute_s=0.1, facts={"num_threads": 1}))
    assert seen.verdict is not None
    assert (seen.verdict.disease, seen.remedies[0].name) == ("compute", "threads")
    assert seen.remedies[0].settings == {"num_threads": 4}


@pytest.mark.parametrize(("gain", "is_advised"), [(3.0, True), (1.1, False), (None, False)])
def test_threads_that_are_in_each_others_way_are_noticed(gain: float | None, is_advised: bool) -> None:
    seen = diagnose(made_record(compute_s=0.1, facts={"num_threads": 4, "one_thread_gain": gain}))
    found = [remedy for remedy in seen.remedies if remedy.name == "threads"]
    assert bool(found) is is_advised
    if is_advised:
        assert seen.verdict is not None
        assert seen.verdict.disease == "compute"
        assert (found[0].settings, found[0].changes_results) == ({"num_threads": 1}, True)
        assert "4 threads compute a step; one alone was 3.0x as fast" in found[0].evidence
        assert found[0].predicted_gain == pytest.approx(103 / (103 - 100 * (1 - 1 / 3)), rel=0.01)


def test_copies_from_pageable_memory_are_noticed() -> None:
    record = made_record(
        compute_s=0.02,
        extra={"copy": 0.01},
        facts={"device": "cuda"},
        machine={"gpu": {"name": "A", "memory_bytes": 24 * GIB}},
    )
    seen = diagnose(record)
    assert seen.verdict is not None
    assert (seen.verdict.disease, seen.remedies[0].name) == ("copies", "pin_memory")


@pytest.mark.parametrize(
    ("kind", "told"), [("network", "a network file system"), ("rotational", "a rotating disk")]
)
def test_a_slow_disk_is_named_where_it_is_waited_for(kind: str, told: str) -> None:
    record = cold_disk()
    record = replace(record, facts={**record.facts, "disk_kind": kind})
    remedies = {remedy.name: remedy for remedy in diagnose(record).remedies}
    assert told in remedies["disk"].evidence


def test_the_diagnosis_survives_its_file(tmp_path: Path) -> None:
    import json

    seen = diagnose(slow_decode())
    path = tmp_path / "record.json"
    path.write_text(json.dumps(seen.to_json()))
    again = read_record(path)
    assert (again.verdict, again.remedies) == (seen.verdict, seen.remedies)
    assert diagnose(again).verdict == seen.verdict


def test_waiting_that_other_programs_cause_is_not_the_loaders_fault() -> None:
    """Batches take a quarter of the time that training on them takes, and come late nevertheless."""
    stages = {"fetch": 0.0, "prepare": 0.01, "collate": 0.0}
    facts = {"loader_cpu_wait_s": 0.006, "num_threads": 1, "compute_cpu_s": 0.03}
    record = made_record(compute_s=0.04, stages=stages, num_workers=1, cpu_share=0.4, facts=facts)
    late = tuple(replace(step, seconds={**step.seconds, "wait": 0.02}) for step in record.steps)
    seen = diagnose(replace(record, steps=late, ceiling=ceiling_of(0.06, 0.04, None)))
    assert seen.verdict is not None
    assert (seen.verdict.disease, seen.remedies) == ("healthy", ())
    assert any("other programs" in text for text in seen.warnings)
