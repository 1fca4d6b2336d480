"""`flatout doctor` as a user types it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.doctor import scripts

from flatout.cli.doctor_table import show
from flatout.cli.main import main
from flatout.doctor.diagnose import diagnose
from flatout.doctor.observe.overhead import measure_overhead
from flatout.doctor.record import Ceiling, DoctorRecord, Exit, Trial, read_record
from flatout.doctor.rules.words import duration


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow  # a minute: each remedy is tried in rounds
def test_remedies_are_tried_in_the_same_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = scripts.PLAIN.replace(scripts.WITHOUT_COMPILER, "")  # just as people have it
    script = scripts.write(here, text.replace("wait=0.001", "wait=0.003"))
    given = [
        "doctor",
        "--steps",
        "20",
        "--try",
        "--json",
        "--report",
        "page.html",
        "-o",
        "record.json",
        str(script),
    ]
    assert main(given) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["exit"]["was_stopped"]
    assert shown["verdict"]["sentence"]
    tried = {remedy["name"]: remedy["trial"] for remedy in shown["remedies"] if remedy["trial"]}
    assert tried
    best = max(tried.values(), key=lambda trial: trial["gain"])
    assert best["is_kept"]
    assert 1.0 < best["low"] <= best["gain"] <= best["high"]
    assert best["gain"] < shown["ceiling"]["high"] * 1.5
    assert all(trial["losses_agree"] in (True, None) for trial in tried.values())
    assert read_record(here / "record.json").to_json() == shown
    assert "<html" in (here / "page.html").read_text()


def test_what_is_printed(plain: DoctorRecord, capsys: pytest.CaptureFixture[str]) -> None:
    record = diagnose(plain)
    first = replace(record.remedies[0], trial=Trial(2.5, 2.0, 3.0, is_kept=True, note="same numbers"))
    show(replace(record, remedies=(first, *record.remedies[1:])))
    out = capsys.readouterr().out
    assert record.verdict is not None
    assert record.verdict.sentence in out
    assert re.search(r"step\s+[\d.]+ ms, the mean of 2[01]: wait \d\d %", out)
    assert "is the most that any better data path could" in out
    assert "2.5x (2.00 to" in out
    assert first.how in out


def test_a_ceiling_that_nobody_knows_closely_is_printed_by_both_ends(
    plain: DoctorRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    show(replace(plain, ceiling=Ceiling(0.1, 0.01, None, 2.0, 40.0)))
    out = " ".join(capsys.readouterr().out.split())
    assert "something between 2.0x and 40.0x is the most that any better data path could give" in out
    assert "10.0x" not in out


def test_what_a_batch_waits_for_a_core_is_printed(
    plain: DoctorRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    made_s = sum(plain.loaders[0].seconds.values())
    for waited, told in ((0.9, 0.9), (1.5, 1.0), (0.0, None)):
        show(replace(plain, facts={**plain.facts, "loader_cpu_wait_s": waited * made_s}))
        out = " ".join(capsys.readouterr().out.split())
        if told is None:
            assert "of it waiting for a core" not in out
        else:
            assert f"{duration(told * made_s)} of it waiting for a core" in out


def test_flags_are_for_trials(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--flags", str(scripts.write(here, "raise SystemExit(3)"))]) == 2
    assert "give --try, too" in capsys.readouterr().err


def test_a_crash_is_named_first(capsys: pytest.CaptureFixture[str], plain: DoctorRecord) -> None:
    show(replace(plain, exit=Exit(1, False, "Traceback\nValueError: bad [sample]\n")))
    assert "exit code 1 after 2" in (shown := capsys.readouterr()).err
    assert "ValueError: bad [sample]" in shown.err


def test_a_crash_has_the_scripts_exit_code(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = scripts.write(here, "raise SystemExit(3)")
    assert main(["doctor", str(script)]) == 3
    assert "exit code 3" in capfd.readouterr().err


FAILS = (
    scripts.HEAD
    + """
for number, batch in enumerate(DataLoader(Slow(64, 0.02), batch_size=4)):
    train_step(batch)
    if number == 4:
        raise ValueError("no more")
"""
)


def test_a_crash_after_few_steps_gets_no_verdict(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--output", "seen.json", str(scripts.write(here, FAILS))]) == 1
    told = capfd.readouterr()
    assert "ValueError: no more" in told.err
    assert "too few to say more" in " ".join(told.out.split())
    assert "any better data path" not in told.out
    seen = json.loads((here / "seen.json").read_text())
    assert (seen["verdict"]["disease"], seen["remedies"], seen["ceiling"]) == ("unknown", [], None)
    assert "ValueError: no more" in seen["exit"]["error"]


def test_options_behind_the_script_are_told_to_be_the_scripts(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = scripts.write(here, "import sys; print('got', sys.argv[1:])")
    assert main(["doctor", str(script), "--try", "--steps", "20"]) == 0
    shown = capfd.readouterr()
    assert "got ['--try', '--steps', '20']" in shown.out
    assert f"--try behind {script} is the script's" in shown.err
    assert main(["doctor", str(script), "--report=x.html"]) == 0
    assert f"--report behind {script} is the script's" in capfd.readouterr().err
    assert main(["doctor", str(script), "--steps", "20"]) == 0
    assert "is the script's" not in capfd.readouterr().err


def test_a_script_without_a_loader_is_told_what_is_watched(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = scripts.write(here, "print('hello')")
    assert main(["doctor", "--report", "page.html", str(script)]) == 0
    shown = capfd.readouterr()
    assert "No training step could be measured" in shown.out
    assert "nothing was seen: the script read no batch of a torch.utils.data.DataLoader" in shown.err
    assert "Next: " in shown.err
    assert f"report   {here / 'page.html'}" in shown.err


def test_a_mistake_in_the_script_is_all_that_is_told_of_it(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = scripts.write(here, "def f(:\n")
    assert main(["doctor", str(script)]) == 1
    shown = capfd.readouterr()
    assert "SyntaxError" in shown.err
    assert "DataLoader" not in shown.err + shown.out


def test_a_script_that_is_not_there(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "nothing.py"]) == 2
    assert "nothing.py is no file" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--report", "--output"])
def test_a_place_that_cannot_be_written_is_told_beforehand(
    here: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    script = scripts.write(here, "open('ran', 'w').close()\n")
    (here / "file").write_text("")
    for place, told in (
        (".", "is a folder"),
        ("file/page.html", "nothing can be written to"),
        ("missing/page.html", f"there is no folder {here / 'missing'}"),
    ):
        assert main(["doctor", option, place, str(script)]) == 2
        assert told in capsys.readouterr().err
    assert not (here / "ran").exists()
    assert not (here / "missing").exists()


def test_full_and_try_exclude_each_other(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--try", "--full", "x.py"]) == 2
    assert "--full" in capsys.readouterr().err


@pytest.mark.slow
def test_results_are_the_scripts_own_with_full(here: Path) -> None:
    script = scripts.write(here, scripts.SHORT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    alone = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True
    )
    command = [sys.executable, "-c", "from flatout.cli.main import main; raise SystemExit(main())"]
    watched = subprocess.run(
        [*command, "doctor", "--full", str(script)], env=environment, capture_output=True, text=True, check=True
    )
    (line,) = [line for line in alone.stdout.splitlines() if line.startswith("last loss")]
    assert line in watched.stdout.splitlines()


@pytest.mark.slow
def test_watching_costs_little(here: Path) -> None:
    script = scripts.write(here, scripts.PLAIN)
    assert measure_overhead(script, num_rounds=2) < 0.1
