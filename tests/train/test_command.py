"""`flatout train` as a user types it."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.train.tiny import Tiny, TinyModule, config_of, prepare, write_rows

from flatout.cli.lazy import load_command
from flatout.cli.main import main
from flatout.config import to_yaml

Make = Callable[..., dict[str, Any]]


@pytest.fixture
def config_file(make_config: Make, tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(make_config(epochs=1)))
    return path


def test_a_run(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", str(config_file)]) == 0
    shown = capsys.readouterr()
    assert "the store" in shown.out
    assert "val_loss" in shown.out
    assert "best.safetensors" in shown.out
    assert "epoch 1/1: train_loss" in shown.err
    assert shown.err.startswith(f"starting: config {config_file}\n")


def test_options_win_over_the_file(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--epochs", "2", "--batch_size", "7", "--no-use-fast-loader", "--limit-val-batches", "1"]
    options += [
        "--val_check_interval",
        "1.0",
        "--no-pin-memory",
        "--set",
        "learning_rate=0.5",
        "--use_gpu_augment",
    ]
    assert main(["train", "--config", str(config_file), *options, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["epochs"]) == 2
    assert not result["is_fast"]
    record = json.loads((Path(result["folder"]) / "run.json").read_text())["config"]
    assert (record["batch_size"], record["learning_rate"], record["pin_memory"]) == (7, 0.5, False)
    assert (record["limit_val_batches"], record["val_check_interval"]) == (1, 1.0)


def test_it_goes_on(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", str(config_file), "--json"]) == 0
    folder = json.loads(capsys.readouterr().out)["folder"]
    assert main(["train", "--config", str(config_file), "--epochs", "3", "--resume", folder, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["folder"] == folder
    assert [row["epoch"] for row in result["epochs"]] == [0, 1, 2]
    for place in (folder, result["last_checkpoint"]):  # alone: with the settings that it had
        assert main(["train", "--epochs", "4", "--resume", place, "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["epochs"]) == 4


def test_the_settings_of_a_run_are_given_back_in_silence(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(config_file.parent)
    options = ["--output-dir", "elsewhere", "--set", "task=tests.train.tiny:Tiny"]
    assert main(["train", "--config", config_file.name, *options, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["train", "--config", f"{tmp_path}/{first['folder']}/config.yaml", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["notes"] == first["notes"]
    assert Path(again["folder"]).parent == tmp_path / "elsewhere"
    records = [
        json.loads((tmp_path / each["folder"] / "run.json").read_text())["config"] for each in (first, again)
    ]
    assert records[1] == records[0]


@pytest.mark.parametrize("beside", ["project", "here"])
def test_a_run_goes_on_with_a_task_that_lay_beside_its_config(
    beside: str,
    make_config: Make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or in the folder that was the current one; both are others when it goes on."""
    for name in ("project", "here", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / beside / "lay_beside.py").write_text("from tests.train.tiny import Tiny as Mine\n")
    config = tmp_path / "project" / "config.yaml"
    config.write_text(to_yaml(make_config(epochs=1, task="lay_beside:Mine")))
    known = sys.path[:]
    monkeypatch.setattr(sys, "path", known[:])
    monkeypatch.chdir(tmp_path / "here")
    assert main(["train", "--config", str(config), "--json"]) == 0
    folder = json.loads(capsys.readouterr().out)["folder"]
    monkeypatch.chdir(tmp_path / "elsewhere")
    num_epochs = 1
    for options in (["--resume", folder], ["--config", f"{folder}/config.yaml"], ["--resume", folder]):
        monkeypatch.setattr(sys, "path", known[:])
        monkeypatch.delitem(sys.modules, "lay_beside")
        num_epochs += 1
        assert main(["train", *options, "--epochs", str(num_epochs), "--json"]) == 0, capsys.readouterr().err


def test_without_a_store_it_says_how_to_prepare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    config = config_of(write_rows(tmp_path / "raw"), tmp_path / "runs", epochs=1)
    path.write_text(to_yaml(config))
    assert main(["train", "--config", str(path)]) == 0
    shown = capsys.readouterr()
    assert f"'flatout prepare --config {path}' makes one" in shown.err.replace("\n", " ")
    assert "raw files" in shown.out


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        ([], 2, "nothing to train: give --config"),
        (["--resume", "absent"], 2, "resume: absent does not exist: give the folder of a run"),
        (["--resume", "http://absent/last.ckpt"], 2, "there is no config.yaml of a run at http://absent"),
        (["--resume", "/"], 2, "there is no config.yaml of a run at /: give --config"),
        (["--task", "segmentation"], 2, "nothing to train on: set 'manifest'"),
        (["--task", "nonsense"], 2, "package.module:Name"),
        (["--config", "absent.yaml"], 2, "absent.yaml"),
        (["--task", "segmentation", "--precision", "7"], 2, "precision"),
    ],
)
def test_what_is_wrong(options: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *options]) == code
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "SLURM_PROCID"])
def test_only_the_first_process_tells_what_is_started(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ["train", "--task", "segmentation", "--manifest", "rows.csv", "--precision", "7"]
    for number, told in (("0", "starting: task segmentation, manifest rows.csv\n"), ("1", "")):
        monkeypatch.setenv(name, number)
        assert main(wrong) == 2
        assert capsys.readouterr().err.partition("error: ")[0] == told


def test_a_run_that_is_not_there_is_wrong_usage(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", str(config_file), "--resume", "absent"]) == 2
    assert "resume: absent does not exist" in capsys.readouterr().err


def test_the_config_above_a_copied_checkpoint_is_not_that_of_its_run(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project's own config.yaml is of the training that it describes now."""
    assert main(["train", "--config", str(config_file), "--json"]) == 0
    last = Path(json.loads(capsys.readouterr().out)["last_checkpoint"])
    other = tmp_path / "other"
    (other / "kept").mkdir(parents=True)
    (other / "config.yaml").write_text("task: segmentation\nmanifest: rows.csv\n")
    copy = other / "kept" / "mine.ckpt"
    copy.write_bytes(last.read_bytes())
    assert main(["train", "--resume", str(copy)]) == 2
    assert "there is no config.yaml of a run at" in " ".join(capsys.readouterr().err.split())
    assert main(["train", "--config", str(config_file), "--epochs", "2", "--resume", str(copy)]) == 0
    monkeypatch.chdir(last.parent)  # from inside a run, its own is found
    assert main(["train", "--epochs", "2", "--resume", last.name]) == 0


def test_a_column_that_is_not_there_is_wrong_with_a_store_too(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--config", str(config_file), "--set", "splits.column=splitt"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "splits.column names column 'splitt' (did you mean 'split'?)" in told
    assert not list(tmp_path.glob("runs/*"))


def test_a_manifest_that_is_gone_is_said_and_the_store_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(write_rows(tmp_path / "raw"), tmp_path / "runs", epochs=1)
    prepare(config)
    Path(config["manifest"]).unlink()
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert main(["train", "--config", str(tmp_path / "config.yaml")]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "store is read as it is: the manifest" in told
    assert "rows.csv is not there" in told
    assert "flatout prepare" not in told


GUIDE_OPTIONS = [
    "config",
    "task",
    "preset",
    "epochs",
    "batch-size",
    "num-workers",
    "prefetch-factor",
    "preprocessed-data-dir",
    "max-sequence-length",
    "precision",
    "gradient-accumulation-steps",
    "devices",
    "output-dir",
    "learning-rate",
    "pretrained",
    "mode",
    "label-set",
    "resume",
]
GUIDE_SWITCHES = [
    "use-fast-loader",
    "pin-memory",
    "persistent-workers",
    "use-dynamic-padding",
    "compile-model",
    "fast-detection",
    "disable-metrics-monitoring",
    "cache-in-memory",
    "use-gpu-augment",
]


def test_every_option_of_the_guides() -> None:
    parameters = load_command("train").params
    known = {name for parameter in parameters for name in parameter.opts}
    assert {f"--{name}" for name in (*GUIDE_OPTIONS, *GUIDE_SWITCHES)} <= known
    refusals = {name for parameter in parameters for name in parameter.secondary_opts}
    assert {f"--no-{name}" for name in GUIDE_SWITCHES} <= refusals


class StoppingModule(TinyModule):
    """Ctrl-C in the epoch that the patience says, a number that a run of two epochs has no other use for."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.current_epoch == self.config.early_stopping.patience:
            raise KeyboardInterrupt
        return super().training_step(batch, batch_idx)


class Stopping(Tiny):
    def module(self, config: Any, data: Any) -> Any:
        return StoppingModule(config, data)


def test_ctrl_c_says_what_is_kept(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--config", str(config_file), "--task", "tests.train.test_command:Stopping"]
    assert main([*command, "--epochs", "3", "--set", "early_stopping.patience=1"]) == 130
    told = capsys.readouterr().err.replace("\n", " ")
    command = re.search(r"the last checkpoint is kept; 'flatout (.*?)' goes on from it", told)
    assert command is not None
    assert main([*shlex.split(command[1]), "--set", "early_stopping.patience=null"]) == 0  # as it stands


class StoppingAtOnce(Tiny):
    def module(self, config: Any, data: Any) -> Any:
        raise KeyboardInterrupt


def test_ctrl_c_before_there_is_anything_to_keep(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--config", str(config_file), "--task", "tests.train.test_command:StoppingAtOnce"]
    assert main(command) == 130
    assert "no checkpoint yet: one is kept after each epoch" in capsys.readouterr().err.replace("\n", " ")
