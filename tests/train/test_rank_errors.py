"""What ends a run on another rank stands in its record, also where the first cannot write any more."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.config import load_config
from flatout.train import outcome
from flatout.train.live import LiveRecord
from flatout.train.outcome import Outcome
from flatout.train.rank_errors import forget_errors, tell_error, told_errors
from flatout.train.waits import Waits
from flatout.train.watch import Watch


@pytest.fixture(autouse=True)
def no_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "about", lambda *_: {})


def ended(folder: Path, rank: int, error: BaseException) -> dict[str, Any]:
    """The record after the run of this rank has ended by an error."""
    trainer: Any = SimpleNamespace(is_global_zero=rank == 0, global_rank=rank, callbacks=[])
    data: Any = SimpleNamespace(loaders=SimpleNamespace(is_fast=True))
    module: Any = None
    config, watch = load_config({}, environ={}), Watch(Waits(), None)
    Outcome(config, "tiny", trainer, module, data, watch, folder, [], None, lambda _: None).fail(error)
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def write(folder: Path, **record: Any) -> None:
    (folder / "run.json").write_text(json.dumps(record))


def test_errors_are_told_by_rank(tmp_path: Path) -> None:
    tell_error(tmp_path, 10, "ValueError: later")
    tell_error(tmp_path, 2, "ValueError: first")
    (tmp_path / "rankless.error").write_text("something else")
    assert told_errors(tmp_path) == ["rank 2: ValueError: first", "rank 10: ValueError: later"]
    forget_errors(tmp_path)
    assert told_errors(tmp_path) == []
    assert (tmp_path / "rankless.error").exists()


def test_the_record_of_a_run_whose_first_process_is_gone(tmp_path: Path) -> None:
    write(tmp_path, status="running", error=None, epochs=[1, 2])
    record = ended(tmp_path, 1, ValueError("it"))
    assert (record["status"], record["error"]) == ("failed", "rank 1: ValueError: it")
    assert record["epochs"] == [1, 2]


def test_a_run_that_had_no_record_yet(tmp_path: Path) -> None:
    record = ended(tmp_path, 3, ValueError("it"))
    assert (record["status"], record["error"], record["task"]) == ("failed", "rank 3: ValueError: it", "tiny")


def test_the_first_tells_both(tmp_path: Path) -> None:
    """Its own is mostly what follows: a connection was closed."""
    write(tmp_path, status="running")
    ended(tmp_path, 1, ValueError("it"))
    record = ended(tmp_path, 0, RuntimeError("closed"))
    assert record["error"] == "rank 1: ValueError: it; rank 0: RuntimeError: closed"
    assert ended(tmp_path, 0, KeyboardInterrupt())["status"] == "failed"


@pytest.mark.parametrize("status", ["failed", "finished", "interrupted"])
def test_what_follows_from_the_end_of_the_first_is_no_news(tmp_path: Path, status: str) -> None:
    write(tmp_path, status=status, error="ValueError: it")
    assert ended(tmp_path, 1, RuntimeError("closed")) == {"status": status, "error": "ValueError: it"}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_a_rank_that_is_stopped_tells_nothing(tmp_path: Path, error: BaseException) -> None:
    write(tmp_path, status="running")
    assert ended(tmp_path, 1, error) == {"status": "running"}
    assert told_errors(tmp_path) == []


def test_no_live_record_over_it(tmp_path: Path) -> None:
    live = LiveRecord(tmp_path / "run.json", Watch(Waits(), None), lambda *_: {})
    live._save({"status": "running"})
    ended(tmp_path, 1, ValueError("it"))
    live._save({"status": "running"})
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "failed"
