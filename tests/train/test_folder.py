"""The run folder: a new one each time, one for all processes of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flatout.errors import TrainError
from flatout.train.folder import SHARED, run_folder


def name_of(output: Path, *, continued: Path | None = None, is_shared: bool = False) -> str:
    with run_folder(output, continued=continued, is_shared=is_shared) as folder:
        assert (folder / "checkpoints").is_dir()
        return folder.name


def test_numbers_go_up_and_leave_others_alone(tmp_path: Path) -> None:
    assert [name_of(tmp_path / "a" / "runs") for _ in range(2)] == ["run-0001", "run-0002"]
    (tmp_path / "run-0041").mkdir()
    (tmp_path / "run-mine").mkdir()
    assert name_of(tmp_path) == "run-0042"


def test_processes_of_a_run_share_its_folder(tmp_path: Path) -> None:
    with run_folder(tmp_path, continued=None, is_shared=True) as folder:
        assert name_of(tmp_path, is_shared=True) == folder.name  # a child, with this environment
    assert SHARED not in os.environ
    assert name_of(tmp_path) == "run-0002"


def test_processes_that_others_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "abc")
    assert [name_of(tmp_path, is_shared=True) for _ in range(2)] == ["run-abc", "run-abc"]


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    assert name_of(tmp_path, continued=tmp_path / "elsewhere") == "elsewhere"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainError, match=r"output_dir: .*file.* cannot be written"):
        name_of(tmp_path / "file" / "runs")


def start(output: Path, files: tuple[str, ...], continued: Path | None) -> None:
    with run_folder(output, continued=continued, is_shared=False) as folder:
        for name in files:
            (folder / name).write_text("")
        raise KeyboardInterrupt


def fail_in(output: Path, *files: str, continued: Path | None = None) -> None:
    with pytest.raises(KeyboardInterrupt):
        start(output, files, continued)


def test_a_run_that_has_not_begun_leaves_no_folder(tmp_path: Path) -> None:
    fail_in(tmp_path, "config.yaml")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_anything_else_stays(tmp_path: Path) -> None:
    fail_in(tmp_path, "config.yaml", "run.json")
    fail_in(tmp_path, "config.yaml", "checkpoints/last.ckpt")
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "config.yaml").write_text("")
    fail_in(tmp_path, continued=tmp_path / "before")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before", "run-0001", "run-0002"]
