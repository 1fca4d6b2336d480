"""The run folder: a new one each time, one for all processes of a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from flatout.errors import TrainError
from flatout.train import folder as folder_module
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


@pytest.fixture
def by_torchrun(monkeypatch: pytest.MonkeyPatch) -> Callable[[TCPStore, int, Path], list[str]]:
    """The store of a plain torchrun and a rank in; the folders of two runs of this process out."""

    def start(store: TCPStore, rank: int, output: Path) -> list[str]:
        told = {"RUN_ID": "none", "USE_AGENT_STORE": "True"}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "WORLD_SIZE": 2}
        ranks = {"RANK": rank, "LOCAL_RANK": rank}
        for name, value in {**place, **ranks, **{f"TORCHELASTIC_{key}": told[key] for key in told}}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(folder_module, "_num_agreed", count())  # a process of its own
        return [name_of(output, is_shared=True) for _ in range(2)]

    return start


def test_torchrun_without_an_id(
    tmp_path: Path, by_torchrun: Callable[[TCPStore, int, Path], list[str]]
) -> None:
    store, again = (TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(2))
    first = [by_torchrun(store, rank, tmp_path) for rank in (0, 1)]
    assert first == [["run-0001", "run-0002"]] * 2
    assert by_torchrun(store, 0, tmp_path) == first[0]  # started again by the same torchrun
    second = [by_torchrun(again, rank, tmp_path) for rank in (0, 1)]
    assert second == [["run-0003", "run-0004"]] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [*first[0], *second[0]]


def test_ranks_wait_for_the_first_one_only_so_long(
    tmp_path: Path, by_torchrun: Callable[[TCPStore, int, Path], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "PATIENCE", timedelta(seconds=0.2))
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with pytest.raises(TrainError, match="the first rank did not tell the folder of the run"):
        by_torchrun(store, 1, tmp_path)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, ["run-77-2", "run-77-2"]),
        ({"SLURM_STEP_NUM_TASKS": "1"}, ["run-0001", "run-0002"]),
        ({"SLURM_JOB_NAME": "bash"}, ["run-0001", "run-0002"]),
    ],
    ids=["ranks", "one task", "a shell"],
)
def test_processes_of_srun(
    tmp_path: Path, settings: dict[str, str], wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    step = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
    for name, value in {**step, **settings}.items():
        monkeypatch.setenv(name, value)
    assert [name_of(tmp_path, is_shared=True) for _ in range(2)] == wanted
