"""Paths are expanded, and found beside the config file first."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.config import load_config, resolve_config
from flatout.errors import ConfigError


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A folder with a config in it, and another one that is the current one."""
    beside, current = tmp_path / "beside", tmp_path / "current"
    for folder in (beside, current):
        folder.mkdir()
    monkeypatch.chdir(current)
    return beside, current


def manifest_of(folder: Path, value: str, **environ: str) -> object:
    (folder / "c.yaml").write_text(f"manifest: {value}\n")
    return load_config(folder / "c.yaml", environ=environ).manifest


def test_a_file_beside_the_config_is_found(folders: tuple[Path, Path]) -> None:
    beside, current = folders
    (beside / "a.csv").touch()
    (current / "a.csv").touch()

    assert manifest_of(beside, "a.csv") == str(beside / "a.csv")
    assert manifest_of(beside, "{train: a.csv}") == {"train": str(beside / "a.csv")}


def test_what_is_in_both_folders_is_told(folders: tuple[Path, Path]) -> None:
    """Two stores of one config would go apart without a word."""
    beside, current = folders
    (beside / "c.yaml").write_text("preprocessed_data_dir: store\n")
    (current / "store").mkdir()
    assert resolve_config(beside / "c.yaml", environ={})[1] == []
    (beside / "store").mkdir()
    config, (note,) = resolve_config(beside / "c.yaml", environ={})
    assert config.preprocessed_data_dir == str(beside / "store")
    assert note.startswith(f"preprocessed_data_dir: took {beside / 'store'}, beside the config; there is one")


def test_otherwise_it_means_the_current_folder(folders: tuple[Path, Path]) -> None:
    beside, current = folders
    (current / "a.csv").touch()

    assert manifest_of(beside, "a.csv") == "a.csv"
    assert manifest_of(current, "a.csv") == "a.csv"


def test_home_and_variables_are_expanded(folders: tuple[Path, Path]) -> None:
    beside, _ = folders

    assert manifest_of(beside, "~/a.csv", HOME="/home/x") == "/home/x/a.csv"
    assert manifest_of(beside, "$DATA/${NAME}.csv", DATA="/data", NAME="a") == "/data/a.csv"
    assert manifest_of(beside, "a~b$.csv") == "a~b$.csv"
    assert manifest_of(beside, "s3://bucket/a.csv") == "s3://bucket/a.csv"


def test_the_name_of_a_folder_that_is_there_is_no_variable(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resolved config has whole paths, and is read again."""
    beside, _ = folders
    dear = beside / "a$DATA" / "b"
    dear.mkdir(parents=True)
    monkeypatch.chdir(dear)
    for given in (f"{dear}/a.csv", f"{dear}"):
        assert manifest_of(beside, given, DATA="/data") == given
    assert manifest_of(beside, f"{beside}/b$DATA/a.csv", DATA="_") == f"{beside}/b_/a.csv"
    again = load_config(
        load_config({"output_dir": f"{dear}/runs"}, environ={}), overrides={"epochs": 2}, environ={}
    )
    assert again.output_dir == f"{dear}/runs"


def test_a_variable_that_is_not_set_is_an_error(folders: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match=r"c\.yaml, line 1: 'manifest' is '\$DATA/a', .*DATA is not set"):
        manifest_of(folders[0], "$DATA/a")


def test_overrides_mean_the_current_folder_and_may_be_paths(folders: tuple[Path, Path]) -> None:
    beside, _ = folders
    (beside / "store").mkdir()
    (beside / "c.yaml").write_text("output_dir: store\nbase_path: store\n")

    config = load_config(
        beside / "c.yaml",
        overrides={"preprocessed_data_dir": Path("store")},
        sets=["output_dir=store"],
        environ={"FLATOUT_PRETRAINED": "$X", "X": "weights.ckpt"},
    )

    assert config.preprocessed_data_dir == "store"
    assert config.output_dir == "store"
    assert config.base_path == str(beside / "store")
    assert config.pretrained == "weights.ckpt"


def test_other_text_is_left_alone() -> None:
    config = load_config({"transform_params": {"path": "~/$HOME"}, "transform_version": "$1"}, environ={})

    assert config.transform_params == {"path": "~/$HOME"}


def test_the_folder_of_the_file_is_known(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    beside, _ = folders
    (beside / "c.yaml").write_text("batch_size: 4")
    monkeypatch.chdir(beside)

    assert load_config("c.yaml", environ={}).config_dir == beside
    assert load_config({}, environ={}).config_dir is None


@pytest.mark.parametrize(
    "pattern",
    ["tars/audio_{0..1}.tar", "tars/audio__OP_0..1_CL_.tar", "tars/audio_{0,1}.tar", "tars/audio_0.tar"],
)
def test_tars_beside_the_config_are_found(folders: tuple[Path, Path], pattern: str) -> None:
    beside, _ = folders
    (beside / "c.yaml").write_text(f"tarred_audio_filepaths: ['{pattern}', '$X/b.tar', '~/c.tar']\n")

    def found() -> object:
        environ = {"X": "/x", "HOME": "/home/x"}
        return load_config(beside / "c.yaml", environ=environ).tarred_audio_filepaths

    assert found() == [pattern, "/x/b.tar", "/home/x/c.tar"]
    (beside / "tars").mkdir()
    for number in range(2):
        (beside / "tars" / f"audio_{number}.tar").touch()
    assert found() == [str(beside / pattern), "/x/b.tar", "/home/x/c.tar"]
    (beside / "c.yaml").write_text(f"tarred_audio_filepaths: '{pattern}'\n")
    assert found() == str(beside / pattern)
