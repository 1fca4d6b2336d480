"""A resolved config as a file: read again it says what was said, and nothing more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from flatout.config import Config, list_tasks, load_config, resolve_config
from flatout.config.presets import list_presets
from flatout.config.written import config_text

EXTRAS: list[dict[str, Any]] = [
    {},
    {"num_workers": 0, "prefetch_factor": 4},
    {"batch_size": "auto"},
    {"fast_detection": True, "pin_memory": False},
    {"train_ds": {"batch_size": 4}, "validation_ds": {"num_workers": 0}},
    {"fields": {"x": {"kind": "array"}, "label": None}},
    {"fields": {"label": None}, "num_workers": 0, "test_ds": {"num_workers": 2}},
    {"fields": {"x": {"size": [8, 8]}}, "model": {"dim": 3}, "splits": {"group": "patient"}},
    {"label_set": "physionet2016", "manifest": {"train": "/a.csv", "val": "/b.csv"}},
]


def said(section: Any) -> Any:
    """What counts as said, all the way down."""
    if not hasattr(section, "model_fields_set"):
        return {name: said(inner) for name, inner in section.items()} if isinstance(section, dict) else None
    return {name: said(getattr(section, name)) for name in section.model_fields_set}


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: ",".join(extra) or "nothing")
@pytest.mark.parametrize("task", [None, *list_tasks()])
def test_it_reads_back_as_it_is_and_in_silence(task: str | None, extra: dict[str, Any], tmp_path: Path) -> None:
    for preset in (None, *list_presets()):
        given = {"epochs": 2, "task": task, "preset": preset, **extra}
        config = load_config({key: value for key, value in given.items() if value is not None}, environ={})
        (tmp_path / "config.yaml").write_text(config_text(config))
        again, notes = resolve_config(tmp_path / "config.yaml", environ={})
        assert again == config
        assert said(again) == said(config)
        assert [note for note in notes if "is kept, but more than" not in note] == []


def test_defaults_stand_there_as_comments() -> None:
    text = config_text(load_config({"epochs": 3, "model": {"dim": 5}}, environ={}))
    assert yaml.safe_load(text) == {"epochs": 3, "model": {"dim": 5}}
    comments = "\n".join(line.removeprefix("# ") for line in text.partition("default:\n")[2].splitlines())
    found = yaml.safe_load(comments)
    assert found["batch_size"] == Config().batch_size
    assert found["model"]["num_layers"] is None
    assert "epochs" not in found
    assert "dim" not in found["model"]


def test_workers_may_be_given_to_what_had_none(tmp_path: Path) -> None:
    """What follows from none must not follow them."""
    given = {"num_workers": 0, "validation_ds": {"num_workers": 0}}
    (tmp_path / "config.yaml").write_text(config_text(load_config(given, environ={})))
    found = {"num_workers": 2, "validation_ds.num_workers": 2}
    for source in (tmp_path / "config.yaml", load_config(given, environ={})):
        config = load_config(source, overrides=found, environ={})
        for split in ("train", "val"):
            settings = config.loader_for(split)
            assert (settings.prefetch_factor, settings.persistent_workers) == (4, True)


def test_tar_files_hold_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the current folder; what the manifest's folder has is found from there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name in ("here_0.tar", "data/there_0.tar"):
        (tmp_path / name).touch()
    patterns = ["here_{0..1}.tar", "there_{0..1}.tar", "nowhere.tar"]
    given = {"manifest": "data/rows.json", "tarred_audio_filepaths": patterns}
    found = yaml.safe_load(config_text(load_config(given, environ={})))["tarred_audio_filepaths"]
    assert found == [str(tmp_path / "here_{0..1}.tar"), *patterns[1:]]
    alone = load_config({**given, "tarred_audio_filepaths": patterns[0], "base_path": "data"}, environ={})
    assert yaml.safe_load(config_text(alone))["tarred_audio_filepaths"] == str(tmp_path / patterns[0])


def test_paths_hold_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config({"manifest": "rows.csv", "pretrained": "https://host/w.ckpt"}, environ={})
    found = yaml.safe_load(config_text(config))
    assert found == {"manifest": str(tmp_path / "rows.csv"), "pretrained": "https://host/w.ckpt"}
