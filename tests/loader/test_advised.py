"""The advised command makes the store that the run looks for, whatever it was told beside its file."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.train.tiny import write_rows

from flatout.cli.main import main
from flatout.config import Config, load_config, to_yaml
from flatout.errors import ConfigError
from flatout.loader.advised import prepare_command

FILE = {"manifest": "scans", "preprocessed_data_dir": "store", "fields": {"image": {"kind": "image"}}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "config.yaml"
    found.write_text(to_yaml(FILE))
    return found


def test_a_file_says_it_all(path: Path) -> None:
    assert prepare_command(path, load_config(path)) == f"flatout prepare --config {path}"


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (["task=segmentation"], " --set task=segmentation"),
        (["preprocessed_data_dir=my store"], " --output-dir 'my store'"),
        (["fields.image.size=[40, 40]"], " --set 'fields.image.size=[40,40]'"),
        (["fields.image=null", "splits.seed=3"], " --set fields.image=null --set splits.seed=3"),
        (["epochs=3", "batch_size=7"], ""),
    ],
)
def test_what_the_run_was_told_beside_it_is_named(path: Path, sets: list[str], told: str) -> None:
    config = load_config(path, sets=sets)
    command = prepare_command(path, config)
    assert command == f"flatout prepare --config {path}{told}"
    words = shlex.split(command)
    again = load_config(path, sets=[word for before, word in pairwise(words) if before == "--set"])
    assert again.fields == config.fields
    assert again.splits == config.splits


@pytest.mark.parametrize("wrong", [{"batch_size": -3}, {"splits": {"seed": "many"}}])
def test_a_file_that_is_good_only_with_what_the_run_was_told(path: Path, wrong: dict[str, Any]) -> None:
    """The command holds all that is set, so that it is good, too."""
    path.write_text(to_yaml({**FILE, **wrong}))
    config = load_config(path, sets=["batch_size=4", "splits.seed=3", "task=segmentation", "fields.mask=null"])
    words = shlex.split(prepare_command(path, config))
    assert words[:4] == ["flatout", "prepare", "--config", str(path)]
    again = load_config(path, sets=[word for before, word in pairwise(words) if before == "--set"])
    assert again.batch_size == 4
    assert again.fields == config.fields
    assert again.splits == config.splits
    assert again.manifest == config.manifest


def test_a_file_whose_task_was_overridden_is_compared_with_the_other(path: Path) -> None:
    path.write_text(to_yaml({**FILE, "task": "segmentatoin"}))
    with pytest.raises(ConfigError):
        load_config(path)
    config = load_config(path, sets=["task=segmentation"])
    assert prepare_command(path, config) == f"flatout prepare --config {path} --set task=segmentation"


def test_a_file_that_is_gone(path: Path) -> None:
    config = load_config(path)
    path.unlink()
    command = prepare_command(path, config)
    assert command.startswith(f"flatout prepare --config {path} ")
    assert "--set fields.image.kind=image" in command


@pytest.mark.parametrize("source", [{}, {"task": "segmentation"}, Config(task="segmentation")])
def test_the_command_without_a_file(source: Any) -> None:
    config = load_config({"manifest": "scans", "preprocessed_data_dir": "store", "task": "segmentation"})
    assert prepare_command(source, config) == "flatout prepare scans --output-dir store --set task=segmentation"


def test_options_without_a_file_are_named() -> None:
    assert prepare_command({}, load_config({})) == "flatout prepare MANIFEST"
    config = load_config({}, sets=["manifest=scans", "task=heart_sound", "fields.signal.rate=4000"])
    wanted = "flatout prepare scans --set task=heart_sound --set fields.signal.rate=4000"
    assert prepare_command({}, config) == wanted


def test_a_dict_is_named_setting_by_setting() -> None:
    """Python's own has no file that the command could name: typed as it stands it makes the same samples."""
    signal = {"kind": "signal", "column": "file", "rate": 2000, "split": "cycles"}
    given = {"fields": {"signal": signal, "label": {"kind": "label"}}, "splits": {"group": "patient"}}
    config = load_config({"manifest": "rows.csv", "preprocessed_data_dir": "store", "batch_size": 8, **given})
    words = shlex.split(prepare_command({"manifest": "rows.csv"}, config))
    assert words[:5] == ["flatout", "prepare", "rows.csv", "--output-dir", "store"]
    sets = [word for before, word in pairwise(words) if before == "--set"]
    again = load_config({"manifest": "rows.csv"}, sets=sets)
    assert (again.fields, again.splits) == (config.fields, config.splits)
    assert len(sets) == 6  # nothing that is as it would be anyway


def test_the_store_is_up_to_date_after_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a user would: the advice is typed as it stands, and the run then reads the store."""
    path = tmp_path / "config.yaml"
    path.write_text(
        to_yaml({"manifest": str(write_rows(tmp_path / "raw")), "preprocessed_data_dir": "elsewhere"})
    )
    given = ["--preprocessed-data-dir", str(tmp_path / "own store"), "--set", "splits.seed=5", "--epochs", "1"]
    train = ["train", "--config", str(path), "--task", "tests.train.tiny:Tiny", *given]
    train += ["--output-dir", str(tmp_path / "runs"), "--set", "logger=[]"]
    assert main([*train, "--use-fast-loader"]) != 0
    advice = capsys.readouterr().err.replace("\n", " ").partition("Prepare it once: '")[2]
    command = advice.partition("'. With")[0]
    assert main(shlex.split(command)[1:]) == 0
    assert main([*train, "--use-fast-loader"]) == 0
