"""create_dataloaders: the right path, the right splits, and nothing stale in silence."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from flatout.config import load_config
from flatout.errors import ConfigError, LoaderError, StoreMissingError
from flatout.loader import create
from flatout.loader.create import create_dataloaders, create_task_dataloaders
from flatout.loader.loader import FastDataLoader
from flatout.loader.machine import Machine
from flatout.store import DataPreprocessor


def test_a_store_is_read_where_there_is_one(raw: Any) -> None:
    config = raw.config()
    assert all(isinstance(loader, DataLoader) for loader in create_dataloaders(config))
    raw.prepare()
    assert all(isinstance(loader, FastDataLoader) for loader in create_dataloaders(config))
    assert all(
        isinstance(loader, DataLoader) for loader in create_dataloaders(config | {"use_fast_loader": False})
    )


def test_a_config_a_dict_and_a_file_are_the_same(prepared: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(prepared))
    found = [create_dataloaders(source) for source in (prepared, load_config(prepared), path, str(path))]
    lengths = {tuple(len(loader) for loader in loaders if loader is not None) for loaders in found}
    assert len(lengths) == 1


def test_nobody_resolves_the_file_again_unless_a_message_names_the_command(
    prepared: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(prepared))
    made: list[Any] = []
    monkeypatch.setattr(create, "prepare_command", lambda *of: made.append(of) or "flatout prepare")
    create_dataloaders(path)
    assert made == []


def test_they_unpack_and_iterate(prepared: dict[str, Any]) -> None:
    train, val, test = create_dataloaders(prepared)
    assert train is not None
    assert val is not None
    assert test is not None
    num_samples = [sum(len(batch["key"]) for batch in loader) for loader in (train, val, test)]
    assert sum(num_samples) == 24
    assert train.batch_size == 4


def test_a_split_without_samples_has_no_loader(raw: Any) -> None:
    splits = {"ratios": {"train": 1}}
    for config in (raw.config(splits=splits), raw.prepare(splits=splits)):
        loaders = create_dataloaders(config)
        assert loaders.train is not None
        assert loaders.val is loaders.test is None


def test_a_split_whose_rows_are_all_bad_or_beyond_the_limit(raw: Any) -> None:
    lines = (raw.folder / "rows.csv").read_text().splitlines()
    rows = [
        f"{line},{'val' if at == 3 else 'train' if at < 20 else 'test'}" for at, line in enumerate(lines[1:])
    ]
    (raw.folder / "rows.csv").write_text("\n".join([f"{lines[0]},split", *rows]) + "\n")
    config = raw.config(splits={"column": "split"}, limit=20)
    assert create_dataloaders(config).test is None
    (raw.folder / "s03.npy").write_bytes(b"broken")
    raw.prepare(splits={"column": "split"}, limit=20)
    for use_fast_loader in (True, False):
        loaders = create_dataloaders(config | {"use_fast_loader": use_fast_loader})
        assert loaders.train is not None
        assert loaders.val is loaders.test is None


def test_no_usual_split_at_all(raw: Any) -> None:
    config = raw.prepare(splits={"ratios": {"fold1": 1}})
    with pytest.raises(ConfigError, match="there are: fold1"):
        create_dataloaders(config)


def test_a_missing_store_names_the_command(raw: Any) -> None:
    with pytest.raises(StoreMissingError, match=r"flatout prepare .*rows\.csv --output-dir .*store"):
        create_dataloaders(raw.config(use_fast_loader=True))
    path = raw.folder / "c.json"
    path.write_text(json.dumps(raw.config(use_fast_loader=True)))
    with pytest.raises(StoreMissingError, match=rf"'flatout prepare --config {path}'"):
        create_dataloaders(path)
    with pytest.raises(ConfigError, match="needs preprocessed_data_dir"):
        create_dataloaders(raw.config(use_fast_loader=True, preprocessed_data_dir=None))


def test_reading_raw_files_for_want_of_a_store_is_said(raw: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flatout.loader.create"):
        create_dataloaders(raw.config())
    assert [text for text in caplog.messages if "no store yet" in text and "flatout prepare" in text]


@pytest.mark.parametrize("use_fast_loader", ["auto", True])
def test_a_stale_store_is_refused(raw: Any, use_fast_loader: Any) -> None:
    raw.prepare()
    changed = raw.config(fields={"image": {"kind": "array", "dtype": "float64"}, "label": {"kind": "label"}})
    with pytest.raises(LoaderError, match=r"other settings.*fields\.image\.dtype.*flatout prepare") as raised:
        create_dataloaders(changed | {"use_fast_loader": use_fast_loader})
    assert "--accept-fingerprint" in str(raised.value)
    loader = create_dataloaders(changed | {"use_fast_loader": False}).train
    assert loader is not None
    assert next(iter(loader))["image"].dtype.itemsize == 8


def test_lesser_differences_are_warned_of(raw: Any, caplog: pytest.LogCaptureFixture) -> None:
    raw.prepare()
    other = raw.folder / "other.csv"
    other.write_text((raw.folder / "rows.csv").read_text())
    create_dataloaders(raw.config(manifest=str(other)))
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert [text for text in warned if "other.csv" in text]


def test_notes_are_said_once(prepared: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flatout.loader.create"):
        create_dataloaders(prepared | {"persistent_workers": True, "num_workers": 1})
    assert len([text for text in caplog.messages if "persistent_workers" in text]) == 1


def test_a_store_without_its_sources(prepared: dict[str, Any]) -> None:
    folder = prepared["preprocessed_data_dir"]
    loaders = create_dataloaders({"preprocessed_data_dir": folder, "batch_size": 24, "num_workers": 0})
    assert loaders.train is not None
    assert len(loaders.train) == 1


def test_a_task_brings_its_defaults(prepared: dict[str, Any]) -> None:
    config = {key: value for key, value in prepared.items() if key != "batch_size"}
    loaders = create_task_dataloaders(config, "segmentation")
    assert loaders.train is not None
    assert loaders.train.batch_size == 64
    named = create_task_dataloaders(load_config({**config, "task": "sequence_vae"}))
    assert named.train is not None
    assert named.train.batch_size == 4
    with pytest.raises(ConfigError, match=r"no task.*cardiac_ct"):
        create_task_dataloaders(config)
    with pytest.raises(ConfigError, match="task"):
        create_task_dataloaders(config, "unknown")


def test_real_recordings_are_the_same_on_both_paths(data_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    config = {
        "manifest": str(data_dir / "heart_yaseen" / "labels.csv"),
        "preprocessed_data_dir": str(tmp_path / "store"),
        "fields": {
            "sound": {"kind": "signal", "column": "file", "rate": 1000, "split": "cycles", "length": 900},
            "label": {"kind": "label"},
        },
        "limit": 12,
        "num_workers": 0,
        "batch_size": 5,
    }
    unprepared = create_dataloaders(config)
    DataPreprocessor(config).run()
    fast = create_dataloaders(config)
    assert fast.train is not None
    assert unprepared.train is not None
    assert isinstance(fast.train, FastDataLoader)
    for batch, wanted in zip(fast.train, unprepared.train, strict=True):
        assert batch["sound"].shape[1:] == (1, 900)
        assert all(torch.equal(batch[name], wanted[name]) for name in batch)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "cuda"}, "device: cuda is not there; the CPU is used"),
        ({"sequence_crop": "tail"}, "sequence_crop: tail needs max_sequence_length"),
        ({"use_fast_loader": False, "order": "shard_local"}, "raw files have no shards"),
        ({"use_fast_loader": False, "on_damage": "skip"}, "on_damage: only the fast loader does that"),
    ],
)
def test_what_is_done_otherwise_than_asked_is_a_warning(
    prepared: dict[str, Any], caplog: pytest.LogCaptureFixture, settings: dict[str, Any], words: str
) -> None:
    machine = Machine("linux", 2, 1 << 34, 1 << 33, 1 << 30)
    with caplog.at_level(logging.INFO, "flatout.loader.create"):
        create_dataloaders(prepared | {"num_workers": "auto", **settings}, machine=machine)
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([text for text in warned if words in text]) == 1
    assert not [text for text in warned if "auto is" in text], "a choice that was left open is none"
    assert [text for text in caplog.messages if "num_workers: auto is" in text]


def test_no_command_is_advised_that_must_fail(raw: Any, caplog: pytest.LogCaptureFixture) -> None:
    config = raw.prepare()
    (raw.folder / "rows.csv").unlink()
    with caplog.at_level(logging.WARNING):
        create_dataloaders(config)
    told = [r.getMessage() for r in caplog.records if "is not there" in r.getMessage()]
    assert ["is read as it is: the manifest" in text for text in told] == [True]
    assert "flatout prepare" not in told[0]
    changed = config | {"fields": config["fields"] | {"image": {"kind": "array", "dtype": "float64"}}}
    with pytest.raises(LoaderError, match=r"fields\.image\.dtype.* is not there") as refused:
        create_dataloaders(changed | {"use_fast_loader": True})
    assert "flatout prepare" not in str(refused.value)
