"""The progress bar: something is shown at once, nothing twice, one bar at a time."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from flatout.cli import progress
from flatout.cli.progress import ProgressBar


def test_a_stage_shows_at_once_and_ends_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar() as bar:
        bar.begin("first look", 8)
        assert capsys.readouterr().err == "first look: 0 of 8\n"
        bar.begin("prepare", 60)
        assert capsys.readouterr().err == "prepare: 0 of 60\n"
        bar.advance(60)
        bar.bad(2)
        assert capsys.readouterr().err == ""  # no line before some seconds have gone
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("prepare: 60 of 60 (")
    assert line.endswith("), 2 bad")


def test_no_line_comes_twice(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_S", -1.0)
    with ProgressBar() as bar:
        bar.begin("verify", 4)
        bar.advance(1)
        bar.advance(3)
    shown = [line.partition(" (")[0] for line in capsys.readouterr().err.splitlines()]
    assert shown == ["verify: 0 of 4", "verify: 1 of 4", "verify: 4 of 4"]


def test_bad_rows_of_one_stage_are_not_the_next_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar() as bar:
        bar.begin("first look", 8)
        bar.bad(3)
        bar.begin("prepare", 4)
        bar.advance(4)
    assert capsys.readouterr().err.endswith("), 0 bad\n")


def test_nothing_to_do_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar() as bar:
        bar.begin("prepare", 0)
        bar.advance(0)
    assert capsys.readouterr().err == ""


def test_a_terminal_has_one_bar_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=100)
    monkeypatch.setattr(progress, "error_console", lambda: console)
    with ProgressBar() as bar:
        bar.begin("first look", 8)
        assert "first look" in shown.getvalue()
        assert "0/8" in shown.getvalue()
        bar.begin("prepare", 20)  # rich refuses two at a time
        bar.advance(20)
        bar.begin("nothing", 0)
        bar.advance(1)
    assert "8/8" in shown.getvalue()
    assert "20/20" in shown.getvalue()
    assert "21/20" not in shown.getvalue()
