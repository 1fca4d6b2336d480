"""A script that is asked to end, and a Python that knows nothing of us."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flatout.doctor.child.start import write_customize
from flatout.doctor.launch import run as launching


class Deaf:
    """A script that does not listen."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def send_signal(self, number: int) -> None:
        self.heard.append(number)


@pytest.mark.parametrize(("num_patient", "num_asked"), [(0, 1), (1, 2)])
def test_a_script_that_is_to_run_to_its_end_is_asked_twice(
    monkeypatch: pytest.MonkeyPatch, num_patient: int, num_asked: int
) -> None:
    ended: list[Any] = []
    monkeypatch.setattr(launching, "GRACE_S", -1.0)
    monkeypatch.setattr(launching, "end_all", ended.append)
    deaf: Any = Deaf()
    signals = launching._Signals(deaf, num_patient)
    for number in range(num_asked):
        signals.insist()
        assert ended == [], number
        assert not signals.have_killed
        signals._pass_on(signal.SIGTERM, None)
    signals.insist()
    assert ended == [deaf]
    assert deaf.heard == [signal.SIGTERM] * num_asked
    assert signals.were_sent
    assert signals.have_killed


@pytest.mark.parametrize("has_own", [True, False])
def test_a_python_without_flatout_starts_as_if_nobody_watched(tmp_path: Path, has_own: bool) -> None:
    folder, own = tmp_path / "run", tmp_path / "own"
    folder.mkdir()
    own.mkdir()
    place = write_customize(folder)
    if has_own:
        (own / "sitecustomize.py").write_text("print('own customize')\n")
    # -S leaves out site-packages, and with them flatout; what `site` would do follows by hand
    code = f"import sys; sys.path[:0] = [{str(place)!r}, {str(own)!r}]; import sitecustomize"
    command = [sys.executable, "-S", "-E", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("own customize\n" if has_own else "")
