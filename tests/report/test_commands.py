"""`flatout report` as a user types it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.report.records import write_doctor, write_run

from flatout.cli.main import main


def test_beside_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run-0007")
    assert main(["report", str(run)]) == 0
    assert f"{run}/report.html" in capsys.readouterr().out
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert main(["report", str(run), "--markdown"]) == 0
    assert (run / "report.md").read_text().startswith("# Run run-0007")


def test_where_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctor = write_doctor(tmp_path / "doctor.json")
    page = tmp_path / "page.md"
    assert main(["report", str(doctor), "-o", str(page), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "report": str(page),
        "kind": "doctor",
        "markdown": True,
        "bytes": page.stat().st_size,
    }
    assert page.read_text().startswith("# Doctor: train.py")


def test_the_page_of_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "report.md"
    (snippet,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    write_run(tmp_path / "runs" / "run-0001")
    write_run(tmp_path / "runs" / "run-0002", folder="runs/run-0002")
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "report.md", "exec"), {})
    assert (tmp_path / "run.html").exists()
    assert "run-0002 against run-0007: as fast, within 2 %" in capsys.readouterr().out


def test_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctor = write_doctor(tmp_path / "doctor.json")
    before = doctor.read_bytes()
    assert main(["report", str(doctor), "-o", str(doctor)]) == 2
    assert "may be a record" in capsys.readouterr().err
    assert doctor.read_bytes() == before
    doctor.write_bytes(before[:500])
    assert main(["report", str(doctor), "-o", str(tmp_path / "x.html")]) == 1
    assert "is cut off, or no JSON at all" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()
    assert main(["report", str(tmp_path / "none"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "RecordMissingError"


def test_neither_torch_nor_lightning_is_loaded(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    code = (
        "import sys; from flatout.cli.main import main\n"
        f"assert main(['report', {str(run)!r}]) == 0 and main(['compare', {str(run)!r}, {str(run)!r}]) == 0\n"
        "from flatout.report import Dashboard\n"
        "print({'torch', 'lightning', 'h5py', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
