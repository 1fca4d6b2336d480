"""Which of several ends is the script's own: of ranks, of their launcher, of programs that it has started."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.doctor import scripts
from tests.doctor.running import FEW, ONLY_STEPS, run

from flatout.doctor.launch.run import Ended
from flatout.doctor.observe.ending import exit_of, read_exits
from flatout.doctor.observe.run import observe
from flatout.doctor.record import Exit
from flatout.doctor.steps.trace import Trace

LAUNCHER, FIRST, SECOND, PROGRAM = 10, 11, 12, 13


def ended(code: int = 0, *, was_interrupted: bool = False) -> Ended:
    return Ended(LAUNCHER, code, (), 1.0, was_interrupted)


def told(error: str | None = None, at: float | None = None, **others: Any) -> dict[str, Any]:
    return {"error": error, "at": at, "rank": 0, "is_rank": False, "parent": 1} | others


def rank(number: int, error: str | None = None, at: float | None = None) -> dict[str, Any]:
    return told(error, at, rank=number, is_rank=True, parent=LAUNCHER)


def stopped(at: float) -> list[Trace]:
    return [Trace(FIRST, stopped_at=at), Trace(SECOND)]


def test_a_rank_that_failed_before_another_was_stopped_is_a_crash() -> None:
    exits = {LAUNCHER: told("ChildFailedError", 9.0), FIRST: rank(0), SECOND: rank(1, "ValueError: mine", 3.0)}
    assert exit_of(ended(1), exits, stopped(5.0)) == Exit(1, False, "ValueError: mine")
    assert exit_of(ended(0), exits, stopped(5.0)).code == 1


def test_a_script_that_did_not_listen_was_killed_by_us() -> None:
    killed = Ended(LAUNCHER, 137, (), 1.0, was_interrupted=True, was_killed=True)
    assert "did not end within 20 s" in (exit_of(killed, {}, stopped(5.0)).error or "")
    assert exit_of(killed, {LAUNCHER: told("ValueError: mine", 3.0)}, []).error == "ValueError: mine"
    assert exit_of(ended(137), {}, []).error == "ended by signal 9"


CHILD_FAILED = """Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
======================================================
train.py FAILED
------------------------------------------------------
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 11)
------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-17_11:03:32
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 12)
  traceback : Signal 9 (SIGKILL) received by PID 12
======================================================
"""


def test_a_rank_that_was_killed_has_no_traceback_and_is_told() -> None:
    """The other ranks, which do not talk to it, were stopped as always."""
    exits = {LAUNCHER: told(CHILD_FAILED, 9.0), FIRST: rank(0)}
    found = exit_of(ended(1), exits, stopped(5.0))
    assert (found.code, found.was_stopped) == (1, False)
    assert (found.error or "").startswith("rank 1 was ended by signal 9")
    found = exit_of(ended(1), exits, [])
    assert (found.error or "").splitlines()[-1].startswith("rank 1 was ended by signal 9")


def test_a_rank_that_was_stopped_and_is_slow_to_end_was_not_killed() -> None:
    exits = {LAUNCHER: told(CHILD_FAILED, 9.0), FIRST: rank(0)}
    both = [Trace(FIRST, stopped_at=5.0), Trace(SECOND, stopped_at=5.1)]
    assert exit_of(ended(1), exits, both) == Exit(0, True)


def test_what_fails_because_the_script_was_stopped_is_none() -> None:
    exits = {LAUNCHER: told("ChildFailedError", 9.0), FIRST: rank(0), SECOND: rank(1, "connection closed", 5.5)}
    assert exit_of(ended(1), exits, stopped(5.0)) == Exit(0, True)


def test_the_first_rank_to_fail_is_told_and_not_its_launcher() -> None:
    exits = {
        LAUNCHER: told("ChildFailedError", 9.0),
        FIRST: rank(0, "connection closed by peer", 3.1),
        SECOND: rank(1, "ValueError: mine", 3.0),
    }
    assert exit_of(ended(1), exits, []) == Exit(1, False, "ValueError: mine")
    exits[FIRST]["at"] = 3.0
    assert exit_of(ended(1), exits, []).error == "connection closed by peer"  # of two at once the lower rank


def test_a_program_that_the_script_has_started_is_not_the_script() -> None:
    exits = {LAUNCHER: told(), PROGRAM: told("FileNotFoundError", 1.0, parent=LAUNCHER)}
    assert exit_of(ended(0), exits, []) == Exit(0, False)
    assert exit_of(ended(0), exits, stopped(5.0)) == Exit(0, True)
    of_rank = told("FileNotFoundError", 1.0, parent=FIRST, is_rank=True)
    assert exit_of(ended(0), {FIRST: rank(0), PROGRAM: of_rank}, stopped(5.0)) == Exit(0, True)


def test_a_launcher_that_says_nothing_leaves_the_word_to_the_script() -> None:
    exits = {LAUNCHER: told(), PROGRAM: told("ValueError: mine", 1.0, parent=LAUNCHER)}
    assert exit_of(ended(3), exits, []) == Exit(3, False, "ValueError: mine")
    assert exit_of(ended(137), {}, []) == Exit(137, False, "ended by signal 9")


def test_who_was_interrupted_was_not_stopped() -> None:
    exits = {LAUNCHER: told("KeyboardInterrupt", 6.0)}
    assert exit_of(ended(130, was_interrupted=True), exits, stopped(5.0)) == Exit(
        130, False, "KeyboardInterrupt"
    )


@pytest.mark.parametrize("text", ["", '{"error": "Trace', "[1]", "\x00"])
def test_an_end_that_was_cut_off_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "exit-7.json").write_text(text)
    (tmp_path / "exit-8.json").write_text(json.dumps(told("mine", 1.0)))
    assert read_exits(tmp_path) == {7: {}, 8: told("mine", 1.0)}


def test_a_failed_program_of_a_script_that_ends_well(tmp_path: Path) -> None:
    text = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'raise ValueError'], check=False)\n"
    assert run(tmp_path, text).exit == Exit(0, False)


@pytest.mark.slow
def test_a_rank_of_torchrun_that_is_killed(tmp_path: Path) -> None:
    """They do not talk to each other, so that the other one goes on and is stopped."""
    text = scripts.HEAD + (
        "import signal\n"
        "for step, batch in enumerate(DataLoader(Slow(2000, 0.0), batch_size=4)):\n"
        "    train_step(batch)\n"
        "    if os.environ['RANK'] == '1' and step == 8:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    time.sleep(0.01)\n"
    )
    path = scripts.write(tmp_path, text)
    arguments = ["--nproc_per_node=2", "--master_port=29599", str(path)]
    record = observe(None, "torch.distributed.run", arguments, ONLY_STEPS, stdout=subprocess.DEVNULL)
    assert (record.exit.code, record.exit.was_stopped) == (1, False)
    assert "rank 1 was ended by signal 9" in (record.exit.error or "")


@pytest.mark.slow
def test_the_error_of_a_rank_of_torchrun(tmp_path: Path) -> None:
    broken = "        if dist.get_rank() == 1 and next(counted) == 5:\n            raise ValueError('mine')\n"
    text = scripts.RANKS.replace("    for batch in train:\n", f"    for batch in train:\n{broken}")
    path = scripts.write(tmp_path, text.replace("for epoch", "counted = iter(range(9))\nfor epoch", 1))
    arguments = ["--nproc_per_node=2", "--master_port=29598", str(path)]
    record = observe(None, "torch.distributed.run", arguments, FEW, stdout=subprocess.DEVNULL)
    assert (record.exit.code, record.exit.was_stopped) == (1, False)
    assert record.exit.error is not None
    assert record.exit.error.strip().endswith("ValueError: mine")
