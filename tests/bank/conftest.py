"""A small store of signals with labels and splits, made once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.store import DataPreprocessor, StoreReader

NUM_ITEMS = 45
LENGTH = 48


class Signals:
    """Signals with a number and a class, a function of their position alone."""

    def __init__(self, num_items: int = NUM_ITEMS, changed: int = -1) -> None:
        self.num_items, self.changed = num_items, changed

    def __len__(self) -> int:
        return self.num_items

    def __getitem__(self, at: int) -> dict[str, Any]:
        random = np.random.default_rng(at if at != self.changed else 1_000_000)
        signal = random.standard_normal((1, LENGTH)).astype(np.float32)
        return {"signal": signal, "age": np.float32(at), "label": at % 3}


FIELDS = {"signal": {"kind": "signal"}, "label": {"kind": "label"}}


def make_store(folder: Path, items: Any = None, **fields: Any) -> Path:
    settings = {"num_workers": 0, "fields": {**FIELDS, **fields}, "transform_version": "1"}
    DataPreprocessor.from_dataset(items or Signals(), folder, **settings).run()
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store's folder; do not change it."""
    return make_store(tmp_path_factory.mktemp("bank") / "store")


@pytest.fixture(scope="session")
def store(folder: Path) -> StoreReader:
    return StoreReader(folder)
