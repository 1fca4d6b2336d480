"""Cycles written as files give the same samples as the store they came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.tasks.generated_hearts import config_of, write_hearts

from flatout.config import load_config
from flatout.loader import FastDataset, StandardDataset
from flatout.store import DataPreprocessor, StoreReader
from flatout.tasks.cycle_files import write_cycles


def test_the_same_samples(tmp_path: Path) -> None:
    config: dict[str, Any] = config_of(write_hearts(tmp_path / "raw", 6), tmp_path)
    DataPreprocessor(config).run()
    store = StoreReader(tmp_path / "store")
    settings = write_cycles(store, tmp_path / "cycles")
    del config["preprocessed_data_dir"]
    fields = {"signal": {**config["fields"]["signal"], **settings["fields"]["signal"]}}
    again = load_config({**config, **settings, "fields": fields})
    for split in ("train", "val"):
        stored, files = FastDataset(store, split), StandardDataset(again, split)
        assert len(stored) == len(files) > 0
        for at in range(len(stored)):
            assert torch.equal(stored[at]["signal"], files[at]["signal"])
            assert stored[at]["label"] == files[at]["label"]
