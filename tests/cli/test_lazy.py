"""Commands that are imported when they are called: signals meanwhile are neither lost nor errors."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.cli import lazy
from flatout.cli.commands import COMMANDS
from flatout.cli.main import main

MODULE = """
import signal
class Strict(type):
    def __new__(cls, *given):
        try:
            signal.raise_signal(signal.{name})
        except BaseException as error:
            raise ValueError("the schema is wrong") from error
        return super().__new__(cls, *given)
class Model(metaclass=Strict): ...
def command() -> None: ...
"""


@pytest.fixture(autouse=True)
def _handlers_of_a_fresh_interpreter() -> Iterator[None]:
    """Libraries that other tests use set their own: one that ends the process ended the whole run."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before or signal.default_int_handler)


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_during_the_import_of_a_command(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"interrupted_{name}.py").write_text(MODULE.format(name=name))
    monkeypatch.syspath_prepend(tmp_path)
    entry: Any = COMMANDS["stats"]
    monkeypatch.setitem(lazy.COMMANDS, "stats", type(entry)(f"interrupted_{name}:command", entry.help))
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert main(["stats"]) == code
    assert "schema" not in capsys.readouterr().err
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    sys.modules.pop(f"interrupted_{name}", None)
