"""The Trainer's settings: what is counted in batches is counted in those of one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.config import Config, load_config
from flatout.loader.batches import BatchRule
from flatout.train import trainer
from flatout.train.device import Place
from flatout.train.loaders import RunLoaders
from flatout.train.task import TaskData


def config(**settings: Any) -> Config:
    return load_config(settings, environ={})


def loaders(**splits: int) -> RunLoaders:
    """Of so many batches each, as they are counted before there are processes."""
    lengths: Any = {name: range(num) for name, num in splits.items()}
    return RunLoaders(lengths, TaskData({}), is_fast=True)


@given(num=st.integers(1, 300), batch_size=st.integers(1, 9), world=st.integers(1, 5), drop_last=st.booleans())
def test_batches_of_one_device(num: int, batch_size: int, world: int, drop_last: bool) -> None:
    alone = BatchRule(num, batch_size, drop_last=drop_last).num_batches
    shared = BatchRule(num, batch_size * world, world - 1, world, drop_last).num_batches
    found = trainer.num_batches(config(drop_last=drop_last), Place("cpu", world), loaders(train=alone), "train")
    assert found == shared


@pytest.mark.parametrize(
    ("num_devices", "every", "limit"), [(1, 1, 0.1), (2, None, 1)], ids=["one device", "two devices"]
)
def test_validation_by_batches(num_devices: int, every: int | None, limit: float) -> None:
    notes: list[str] = []
    asked = config(val_check_interval=20, limit_val_batches=0.1, check_val_every_n_epoch=1)
    found = trainer._validation(asked, Place("cpu", num_devices), loaders(train=25, val=10), notes)
    wanted = {"val_check_interval": 20, "check_val_every_n_epoch": every, "limit_val_batches": limit}
    assert found == wanted
    assert len(notes) == (num_devices == 2)


def test_without_a_val_split() -> None:
    notes: list[str] = []
    assert trainer._validation(config(), Place("cpu", 1), loaders(train=3), notes) == {"limit_val_batches": 0}
    assert "no val split" in notes[0]


@pytest.mark.parametrize(("num_devices", "is_synchronised"), [(1, False), (2, True)])
def test_batch_norm_over_devices(
    num_devices: int, is_synchronised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "Trainer", dict)
    notes: list[str] = []
    asked = config(sync_batchnorm=True, logger=[])
    place, data = Place("cpu", num_devices), loaders(train=4, val=2)
    found: Any = trainer.make_trainer(asked, place, "32-true", tmp_path, data, [], False, {}, notes)
    assert found["sync_batchnorm"] is is_synchronised
    assert len(notes) == (not is_synchronised)
