"""Compare: what differs is listed, what does not is not, and faster means faster."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from tests.report.records import doctor_record, loader, run_document, write_doctor, write_run

from flatout.cli.main import main
from flatout.config import Config
from flatout.doctor.record import Exit
from flatout.errors import RecordError
from flatout.living import this_process
from flatout.report import compare, write_comparison
from flatout.report.comparison import Measure
from flatout.report.quantity import RATE
from flatout.report.run import RunRecord
from flatout.report.run_page import run_page
from flatout.report.settings import Difference, differences
from flatout.report.source import read_source
from flatout.report.write import page_of


def faster(folder: Path) -> Path:
    speed = {**run_document()["speed"], "samples_per_s": 1280.0, "data_wait_share": 0.01, "step_ms": 12.5}
    config = Config(task="segmentation", batch_size=16, epochs=4, num_workers=4).model_dump(mode="json")
    return write_run(folder, folder="runs/run-0008", speed=speed, config=config, is_fast=True)


def test_two_runs(tmp_path: Path) -> None:
    found = compare(write_run(tmp_path / "a"), faster(tmp_path / "b"))
    assert found.verdict == "run-0008 against run-0007: 2 times as fast (640 samples/s, then 1,280 samples/s)."
    assert found.settings == (Difference("num_workers", 2, 4),)
    speed = {each.name: each for each in found.speed}
    assert speed["speed"].ratio == 2.0
    assert speed["median step"].ratio == 0.5
    assert speed["speed"].is_better
    assert speed["median step"].is_better
    assert speed["training"].is_better is None
    assert {each.name for each in found.metrics} == {"train_loss", "val_loss", "val_dice"}
    assert found.machine == ()


def test_a_run_without_a_step_has_nothing_to_hold_against(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = {"num_steps": 0, "train_s": 0.0, "first_step_s": 0.0, "samples_per_s": None, "step_ms": None}
    empty = {**run_document()["speed"], **none, "step_p95_ms": None, "data_wait_share": None}
    runs = [str(write_run(tmp_path / "a")), str(write_run(tmp_path / "b", speed=empty))]
    assert main(["compare", *runs]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = {line[0]: line[1:] for line in lines if line}
    assert shown["steps"][1:] == ["0", "-"]
    assert shown["training"][-2:] == ["-", "-"]
    assert not any("0x" in line for line in lines)


def test_where_the_code_lay_is_no_setting(tmp_path: Path) -> None:
    """Unless both were told it; a run that goes on is, though nobody has set it."""
    configs = [{**run_document()["config"], "code_dir": place} for place in (None, "/a", "/b")]
    runs = [write_run(tmp_path / str(at), config=config) for at, config in enumerate(configs)]
    assert compare(runs[0], runs[1]).settings == ()
    assert compare(runs[1], runs[2]).settings == (Difference("code_dir", "/a", "/b"),)


def test_slower_and_on_another_machine(tmp_path: Path) -> None:
    other = write_run(tmp_path / "a", machine={"cpu": "Other", "num_cores": 8, "memory_bytes": 1})
    found = compare(faster(tmp_path / "b"), other)
    assert "2 times slower" in found.verdict
    assert "Their machines differ" in found.verdict
    assert Difference("cpu", "Some CPU", "Other") in found.machine


def test_the_same_run_twice(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    found = compare(run, run)
    assert found.names == ("run-0007 (A)", "run-0007 (B)")
    assert "as fast, within 2 %" in found.verdict
    assert (found.settings, found.machine) == ((), ())
    assert all(each.is_better is None for each in found.speed)


@pytest.mark.parametrize(
    ("status", "told"),
    [("interrupted", "was interrupted"), ("failed", "failed"), ("running", "is still running")],
)
def test_a_run_that_did_not_finish_is_named(status: str, told: str, tmp_path: Path) -> None:
    cut_off = write_run(tmp_path / "a", status=status, written_at=datetime.now(UTC).isoformat())
    found = compare(cut_off, faster(tmp_path / "b"))
    steps = run_document()["speed"]["num_steps"]
    assert found.verdict.endswith(f"run-0007 {told}, after {steps:,} steps.")
    assert told not in compare(faster(tmp_path / "b"), write_run(tmp_path / "c")).verdict


def test_a_run_that_no_longer_writes_is_not_called_running(tmp_path: Path) -> None:
    killed, other = write_run(tmp_path / "a", status="running"), faster(tmp_path / "b")
    written = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    steps = f"{run_document()['speed']['num_steps']:,}"
    told = compare(killed, other, written + timedelta(days=2)).verdict
    assert told.endswith(f"run-0007 may have been killed, after {steps} steps: nothing was written for 48 h.")
    assert "is still running" in compare(killed, other, written + timedelta(seconds=100)).verdict
    assert "may have been killed" in compare(killed, other).verdict
    assert "killed" not in compare(write_run(tmp_path / "c", status="failed"), other).verdict


def test_unlike_batch_sizes_are_said(tmp_path: Path) -> None:
    for changes in ({"batch_size": 64}, {"batch_size": 16, "train_ds": {"batch_size": 64}}):
        config = Config(task="segmentation", **changes).model_dump(mode="json")
        found = compare(write_run(tmp_path / "a"), write_run(tmp_path / "b", config=config))
        assert "Their batch sizes differ (16, then 64): compare samples a second, not steps." in found.verdict
    other = replace(loader(), batch_size=1000)
    assert "batch sizes differ" in compare(doctor_record(), doctor_record(loaders=(other,))).verdict
    assert "batch sizes" not in compare(doctor_record(), doctor_record()).verdict


def test_a_script_that_was_interrupted_is_named() -> None:
    stopped = doctor_record(exit=Exit(130, was_stopped=False), script="other.py")
    assert "other.py was interrupted, after 50 measured steps." in compare(doctor_record(), stopped).verdict


def test_the_wait_of_a_script_is_the_one_of_its_verdict() -> None:
    """With starts of workers that no measured step shows: 100 ms on a step of 100, of which 60 are waiting."""
    found = compare(doctor_record(), doctor_record(facts={"unseen_start_s": 0.1}))
    wait = next(each for each in found.speed if each.name == "waiting for data")
    assert (wait.first, wait.second) == (pytest.approx(0.6, abs=0.01), pytest.approx(0.8, abs=0.01))


def test_the_speed_of_a_script_is_of_the_steps_whose_wait_is_told() -> None:
    """Starts of workers that no measured step shows make a step of 100 ms one of 200: half as fast."""
    second = doctor_record(facts={"unseen_start_s": 0.1}, script="other.py")
    found = compare(doctor_record(), second)
    speed = {each.name: each for each in found.speed}
    assert speed["speed"].ratio == pytest.approx(0.5, abs=0.01)
    assert "2 times slower" in found.verdict
    wait_s = speed["of a step: waiting for data"]
    assert (wait_s.first, wait_s.second) == (pytest.approx(0.06, abs=0.01), pytest.approx(0.16, abs=0.01))
    facts = {fact.name: fact.value for fact in page_of(second).facts}
    assert facts["speed"] == RATE.text(speed["speed"].second)
    untold = replace(second, verdict=None)
    assert f"of each step {facts['waiting for data']} was spent waiting" in page_of(untold).verdict


def test_seconds_that_are_no_numbers_do_not_take_the_speed_away() -> None:
    first, *others = doctor_record().steps
    broken = replace(first, seconds={**first.seconds, "wait": math.nan})
    found = compare(doctor_record(steps=(broken, *others)), doctor_record())
    assert found.speed[0].ratio == pytest.approx(1.0, abs=0.05)


def test_two_records_of_the_doctor(tmp_path: Path) -> None:
    second = doctor_record(loaders=(replace(loader(), num_workers=4),), script="other.py")
    found = compare(write_doctor(tmp_path / "a.json"), second)
    assert found.kind == "doctor"
    assert {each.name for each in found.settings} == {"script", "train.num_workers"}
    assert "of a step: waiting for data" in {each.name for each in found.speed}
    write_comparison(found, tmp_path / "both.html")
    assert "other.py" in (tmp_path / "both.html").read_text()


def test_different_kinds_and_empty_runs(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="two of a kind"):
        compare(write_run(tmp_path / "a"), write_doctor(tmp_path / "d.json"))
    for nothing in (None, 0.0):
        speed = {**run_document()["speed"], "samples_per_s": nothing}
        found = compare(write_run(tmp_path / "a"), write_run(tmp_path / "b", speed=speed, epochs=[], looks=[]))
        assert "one of them measured no speed" in found.verdict


@pytest.mark.parametrize(
    ("first", "second", "ratio"), [(1.0, 2.0, 2.0), (0.0, 2.0, None), (None, 1.0, None), (1.0, 0.0, 0.0)]
)
def test_ratios(first: float | None, second: float | None, ratio: float | None) -> None:
    assert Measure("x", first, second, RATE).ratio == ratio


def test_differences_by_dotted_name() -> None:
    first = {"a": 1, "b": {"c": [1], "d": {}}, "e": 1}
    second = {"a": 1.0, "b": {"c": [2], "d": {}}, "e": True, "f": None}
    assert differences(first, second) == [
        Difference("b.c", [1], [2]),
        Difference("e", 1, True),
        Difference("f", "not set", None),
    ]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = str(write_run(tmp_path / "a")), str(faster(tmp_path / "b"))
    assert main(["compare", first, second]) == 0
    shown = capsys.readouterr().out
    for wanted in ("2 times as fast", "num_workers", "2x", "val_dice", "25 ms", "12.5 ms"):
        assert wanted in shown
    page = tmp_path / "page.html"
    assert main(["compare", first, second, "-o", str(page), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"] == [{"name": "num_workers", "first": 2, "second": 4}]
    assert document["speed"][0] == {"name": "speed", "first": 640.0, "second": 1280.0, "ratio": 2.0}
    assert "run-0008: measured" in page.read_text()
    assert main(["compare", first, str(tmp_path / "none")]) == 2
    assert "there is no such file or folder" in capsys.readouterr().err


def test_the_command_obeys_no_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = write_run(tmp_path / "a", folder="runs/[red]x\x1b[31m", config={"[b]k\x1b]0;t\x07": "[/b]"})
    assert main(["compare", str(hostile), str(write_run(tmp_path / "b"))]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "[red]x" in shown
    assert "[b]k" in shown


def test_a_process_of_this_host_that_is_gone_was_killed(tmp_path: Path) -> None:
    """At once, however lately it wrote; of another host nobody knows."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = {**this_process(), "pid": child.pid, "started": psutil.Process(child.pid).create_time()}
    process["ticks"] = None
    run = write_run(tmp_path / "a", status="running", process=process)
    written = datetime.fromisoformat(run_document()["written_at"])
    other, soon = faster(tmp_path / "b"), written + timedelta(seconds=1)
    assert "run-0007 is still running" in compare(run, other, soon).verdict
    child.kill()
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        pass
    gone = f"its process {child.pid} is gone"
    told = f"run-0007 was killed, after {run_document()['speed']['num_steps']:,} steps: {gone}."
    assert told in compare(run, other, soon).verdict  # nobody has asked for its end yet
    child.communicate()
    assert told in compare(run, other, soon).verdict
    page = run_page(run_record(run), soon)
    assert (page.state, page.tone) == ("killed", "bad")
    assert page.alarm.startswith(f"The run was killed: {gone}; --resume")
    for change in ({"host": "elsewhere.invalid"}, {"numbered_by": "a container, or a copy of this machine"}):
        away = write_run(tmp_path / "c", status="running", process={**process, **change})
        assert "is still running" in compare(away, other, soon).verdict


def run_record(folder: Path) -> RunRecord:
    found = read_source(folder)
    assert isinstance(found, RunRecord)
    return found


def test_speeds_of_a_few_steps_say_little(tmp_path: Path) -> None:
    speed = {**run_document()["speed"], "num_steps": 7}
    found = compare(write_run(tmp_path / "a"), write_run(tmp_path / "b", speed=speed))
    assert "run-0007 (B) has only 7 steps: that says little." in found.verdict
    none = speed | {"num_steps": 0, "samples_per_s": None}
    told = compare(write_run(tmp_path / "a"), write_run(tmp_path / "b", speed=none)).verdict
    assert "measured no speed. run-0007 (B) has only 0 steps: that says little." in told
    assert "says little" not in compare(doctor_record(20), doctor_record(20)).verdict
    assert "has only 19 steps" in compare(doctor_record(20), doctor_record(19)).verdict
