"""`flatout bench prepare` at a tiny scale: the form of its document, and that unequal work is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from flatout.bench import PrepareBench, bench_prepare, contest, peer_h5py
from flatout.bench.cases import CASES
from flatout.bench.contest import check_equal, check_peers, compare, measure_contest
from flatout.bench.index import build
from flatout.bench.job import Job, Outcome, end_with_children, read_items, run
from flatout.bench.machine import CpuWatch
from flatout.bench.overhead import (
    Setting,
    bare_s,
    make_job,
    measure_efficiency,
    measure_safety,
    whole_passes,
)
from flatout.bench.own import plan_decode
from flatout.bench.sources import SourceFiles, find_files
from flatout.cli.main import main
from flatout.errors import FlatoutError, MissingDependencyError
from flatout.source.maker import FieldsMaker
from flatout.store import StoreReader, verify
from flatout.types import Row

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, SourceFiles]:
    """Files as they are made where no real ones are at hand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flatout.bench.sources.NUM_GENERATED", 4)
    return {kind: find_files(kind, None, tmp_path) for kind in ("nifti", "wav")}  # type: ignore[arg-type]


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return Setting(folder, num_workers=1, seconds=0.02, rounds=1, say=lambda text: None)


@pytest.mark.slow  # 50 s: some forty processes
def test_the_document(generated: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--seconds", "0.02", "--rounds", "1", "--samples", "3000", "--num-workers", "1", "--json"]
    assert main(["bench", "prepare", "--scratch", str(tmp_path), *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["efficiency"]) == {"nifti", "wav"}
    assert all(0 < value < 2 for value in document["efficiency"].values())
    for bound in ("limit", "bare", "required"):
        assert all(value > 0 for value in document[f"efficiency_{bound}"].values())
    assert -1 < document["safety_overhead"] < 100
    assert document["index"]["samples"] == 3000
    assert document["index"]["open_s"] > 0
    assert set(document["worker_memory"]) >= {"idle_bytes", "peak_bytes", "limit_bytes", "is_within"}
    assert document["machine"]["cores"] >= 1
    assert document["update"]["scan_rows_per_s"] > 0
    assert document["files"]["wav"]["is_real"] is False
    assert "peers" not in document
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("flatout-bench-")]


def committed_results() -> list[Path]:
    results = sorted((REPOSITORY / "benchmarks" / "results").rglob("prepare--*.json"))
    return results or pytest.skip("no result of a quiet machine has been committed yet")


def test_every_committed_result_has_the_form() -> None:
    for path in committed_results():
        document = json.loads(path.read_text())
        assert set(document["ratio_to_best_peer"]) == set(CASES)
        assert set(document["peers"]) == {"h5py", "monai", "litdata"}
        assert {"date", "cpu", "cores", "python", "libraries"} <= set(document["machine"])
        assert {"efficiency", "safety_overhead", "index", "worker_memory", "contests"} <= set(document)


def test_people_get_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(committed_results()[0].read_text())
    document["efficiency_bare"] = {"nifti": 0.912, "wav": 0.934}
    document["efficiency_required"] = {"nifti": 0.876, "wav": 0.8765}
    monkeypatch.setattr("flatout.cli.bench_command.bench_prepare", lambda options, say: document)
    assert main(["bench", "prepare", "--peers"]) == 0
    shown = capsys.readouterr().out
    for text in (
        "efficiency wav",
        "work and writes alone",
        "0.934",
        "with looks, checks, hashes",
        "0.876",
        "safety overhead",
        "times the best peer",
        "litdata:",
        "samples/s",
    ):
        assert text in shown


def test_a_race_with_one_peer(generated: Any, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "PEERS", ("h5py",))
    found = measure_contest("wav", generated["wav"], setting)
    assert found["rows"] % len(generated["wav"].paths) == 0
    rates = found["samples_per_s"]
    assert found["ratio"] == pytest.approx(rates["flatout"] / rates["h5py"])
    assert list(setting.scratch.iterdir()) == [*setting.scratch.glob("*.csv")]


def test_the_race_compares_what_was_stored(
    generated: Any, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = make_job("prepare", "wav", generated["wav"], setting, 8)
    theirs = make_job("h5py", "wav", generated["wav"], setting, 8)
    run(ours)
    run(theirs)
    compare(CASES["wav"], ours, theirs)
    read = peer_h5py.read

    def tampered(*arguments: Any) -> Any:
        for key, array in read(*arguments):
            yield key, array + (np.float32(1e-6) if key == "00000005" else np.float32(0))

    monkeypatch.setattr(peer_h5py, "read", tampered)
    with pytest.raises(FlatoutError, match="h5py, sample 00000005: arrays differ by"):
        compare(CASES["wav"], ours, theirs)
    monkeypatch.setattr(peer_h5py, "read", lambda *arguments: iter(list(read(*arguments))[:3]))
    with pytest.raises(FlatoutError, match="gave back 3 of"):
        compare(CASES["wav"], ours, theirs)


def test_equal_means_shape_dtype_and_values() -> None:
    exact, rounded = CASES["wav"], CASES["nifti_resampled"]
    array = np.array([[1.0, 100.0]], np.float32)
    check_equal(exact, "a", array, array.copy())
    check_equal(rounded, "a", array, array + np.float32(1e-4))
    for case, other in (
        (exact, array + np.float32(1e-4)),
        (rounded, array + np.float32(0.1)),
        (rounded, np.array([[1.0, np.nan]], np.float32)),
        (rounded, array[0]),
        (rounded, array.astype(np.float64)),
    ):
        with pytest.raises(FlatoutError):
            check_equal(case, "a", array, other)


@pytest.mark.parametrize("name", CASES)
def test_the_ordinary_way_gives_our_arrays(name: str, data_dir: Path, tmp_path: Path) -> None:
    case = CASES[name]
    files = find_files(case.files, data_dir, tmp_path)
    config = make_config(case, files)
    for path in files.paths[:: max(1, len(files.paths) // 20)]:
        made = config.make(Row(path, {"x": path}))
        assert isinstance(made, dict)
        check_equal(case, path, made["x"], case.load(str(files.base / path)))


def make_config(case: Any, files: SourceFiles) -> FieldsMaker:
    from flatout.config import load_config

    fields = load_config({"fields": {"x": dict(case.field)}}).fields
    return FieldsMaker(fields, str(files.base))


def test_generated_files_are_read_alike(generated: Any) -> None:
    for case in CASES.values():
        files = generated[case.files]
        for path in files.paths:
            made = make_config(case, files).make(Row(path, {"x": path}))
            assert isinstance(made, dict)
            check_equal(case, path, made["x"], case.load(str(files.base / path)))


def test_a_missing_peer_is_named_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "PEERS", ("h5py", "no_such_peer"))
    with pytest.raises(MissingDependencyError, match="no_such_peer; 'make bench'"):
        check_peers()
    with pytest.raises(MissingDependencyError):
        bench_prepare(PrepareBench(has_peers=True))


def test_safety_is_measured_with_and_without(generated: Any, setting: Setting) -> None:
    found = measure_safety("wav", generated["wav"], setting, cpu_s_per_row=1e-3)
    assert len(found["safe_s"]) == len(found["unsafe_s"]) == 2
    assert found["overhead"] == pytest.approx(sum(found["safe_s"]) / sum(found["unsafe_s"]) - 1)


def test_a_drift_of_the_machine_is_no_overhead(
    generated: Any, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run takes longer than the one before, whether safe or not; safety adds a fifth of a second."""
    runs: list[bool] = []

    def drifting(job: Job) -> Outcome:
        runs.append(job.is_safe)
        return Outcome({"seconds": 10.0 + len(runs) + (0.2 if job.is_safe else 0.0)}, others=0.0)

    monkeypatch.setattr("flatout.bench.overhead.run", drifting)
    found = measure_safety("wav", generated["wav"], replace(setting, rounds=3), cpu_s_per_row=1e-3)
    assert runs == [False, True, True, False, True, False, False, True, False, True, True, False]
    assert found["rounds"] == pytest.approx([0.4 / 25, 0.4 / 33, 0.4 / 41])
    assert found["overhead"] == pytest.approx(0.4 / 33)


def test_efficiency_counts_the_work_before_and_after(
    generated: Any, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = iter(
        [9e-3, 1e-3, 2e-3, 4e-3, 5e-3]
    )  # files that are cold, a guess, before, after, all workers busy
    monkeypatch.setattr("flatout.bench.overhead.cpu_per_row", lambda *_: next(speeds))
    monkeypatch.setattr("flatout.bench.overhead.bare_s", lambda *_, is_safe: 2.0 if is_safe else 1.0)
    found = measure_efficiency("wav", generated["wav"], setting)
    (only,) = found["rounds"]
    assert found["rows"] == whole_passes(generated["wav"], setting.seconds * setting.num_workers / 1e-3)
    assert only["cpu_s"] == pytest.approx(3e-3 * found["rows"])
    assert only["efficiency"] == pytest.approx(only["cpu_s"] / only["wall_s"])
    assert (only["limit"], only["bare"]) == pytest.approx((0.6, only["cpu_s"]))
    assert only["required"] == pytest.approx(only["cpu_s"] / 2)


def test_what_libraries_take_to_import_is_no_work_of_a_row(
    generated: Any, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes once in a process: rows that stand for eight times as many would count it eight times."""
    clock, calls, make = 0, 0, FieldsMaker.make

    def slow_at_first(maker: FieldsMaker, row: Row) -> Any:
        nonlocal clock, calls
        clock, calls = clock + (1 if calls else 1000), calls + 1
        return make(maker, row)

    monkeypatch.setattr(FieldsMaker, "make", slow_at_first)
    monkeypatch.setattr("flatout.bench.own.time", SimpleNamespace(process_time=lambda: clock))
    job = replace(make_job("decode", "wav", generated["wav"], setting, 8), num_workers=0)
    assert plan_decode(job)()["cpu_s"] == calls - 1


@pytest.mark.parametrize("is_safe", [False, True])
def test_bare_processes_write_every_sample_once(
    generated: Any, setting: Setting, monkeypatch: pytest.MonkeyPatch, is_safe: bool
) -> None:
    kept: list[Path] = []
    monkeypatch.setattr(shutil, "rmtree", lambda path, ignore_errors: kept.append(Path(path)))
    alone = Setting(setting.scratch, 2, 0.02, 1, setting.say)
    assert bare_s("wav", generated["wav"], alone, 8, is_safe=is_safe) > 0
    written = [b"".join(path.read_bytes() for path in folder.iterdir()) for folder in kept]
    files = generated["wav"]
    made = [make_config(CASES["wav"], files).make(Row(path, {"x": path}))["x"] for path in files.paths * 2]  # type: ignore[call-overload]
    assert written == [b"".join(array.tobytes() for array in made[at::2]) for at in range(2)]


WRITERS = """
import subprocess, sys, time
if sys.argv[2] == "parent":
    for group in (None, 0):  # flatout's own workers are groups of their own
        subprocess.Popen([sys.executable, __file__, sys.argv[1], "child"], process_group=group)
while True:
    if sys.argv[2] == "child":
        open(f"{sys.argv[1]}/{time.monotonic_ns()}", "w").close()
    time.sleep(0.001)
"""


@pytest.mark.skipif(os.name == "nt", reason="process groups")
def test_a_process_is_ended_with_those_that_write_for_it(tmp_path: Path) -> None:
    script, folder = tmp_path / "writers.py", tmp_path / "out"
    script.write_text(WRITERS)
    folder.mkdir()
    process = subprocess.Popen([sys.executable, str(script), str(folder), "parent"])
    try:
        wait_for(lambda: len(children_of(process.pid)) == 2 and any(folder.iterdir()))
        writers = children_of(process.pid)
    finally:
        end_with_children(process)
    shutil.rmtree(folder)
    assert not any(is_alive(writer) for writer in writers)
    time.sleep(0.05)
    assert not folder.exists()


@pytest.mark.skipif(os.name == "nt", reason="no SIGTERM")
def test_a_benchmark_that_is_terminated_leaves_nothing(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "flatout",
        "bench",
        "prepare",
        "--scratch",
        str(tmp_path),
        "--seconds",
        "30",
    ]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path, env=environment)
    try:
        wait_for(lambda: any(tmp_path.glob("flatout-bench-*/*/shards")))
        jobs = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    finally:
        end_with_children(process)
    assert jobs
    assert process.returncode == 143
    assert not any(is_alive(job) for job in jobs)
    assert list(tmp_path.iterdir()) == []


def children_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_job_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(FlatoutError, match=r"(?s)open of '' failed: .*has no data_metadata\.json"):
        run(Job("open", out=str(tmp_path)))


def test_the_store_of_many_samples_is_a_store(tmp_path: Path) -> None:
    build(tmp_path / "index", 40_000, num_workers=2)
    store = StoreReader(tmp_path / "index")
    assert (len(store), store.keys()[39_999]) == (40_000, "000039999")
    assert store.read(39_999)["x"] == np.float32(39_999)
    damaged = {damage.file for damage in verify(tmp_path / "index").damage}
    assert damaged == {"preprocessed_data.h5", "quarantine.jsonl", "preprocessing_stats.json"}


def test_rows_repeat_the_files_under_other_keys(generated: Any, tmp_path: Path) -> None:
    files = generated["wav"]
    manifest = files.write_manifest(tmp_path / "rows.csv", 10)
    items = read_items(Job("h5py", manifest=str(manifest), base=str(files.base)))
    assert len({key for key, _ in items}) == 10
    assert [Path(path).name for _, path in items] == [files.paths[n % 4] for n in range(10)]
    assert [whole_passes(files, count) for count in (0, 5, 7)] == [4, 4, 8]


def test_named_data_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(FlatoutError, match="leave --data out"):
        find_files("wav", tmp_path, tmp_path)


def test_others_are_told_from_us() -> None:
    watch = CpuWatch()
    sum(n * n for n in range(200_000))
    assert 0 <= watch.others() <= 1.5
