"""A small store with every form of field, made once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.store import DataPreprocessor, StoreReader

NUM_ITEMS = 103


class Items:
    """Items of fixed, ragged, quantised and scalar fields, a function of their number alone."""

    def __len__(self) -> int:
        return NUM_ITEMS

    def __getitem__(self, at: int) -> dict[str, Any]:
        random = np.random.default_rng(at)
        return {
            "image": random.random((2, 40, 16), np.float32),
            "small": random.random((5,), np.float32),
            "coded": random.random((3, 9), np.float32),
            "half": random.random((700,), np.float32),
            "packed": random.integers(0, 9, (50,)).astype(np.int32),
            "series": random.random((at % 7 + 1, 3), np.float32),
            "label": at % 5,
        }


FIELDS = {
    "coded": {"kind": "transform", "encoding": "uint8"},
    "half": {"kind": "transform", "encoding": "bfloat16"},
    "packed": {"kind": "transform", "compression": "zstd"},
    "series": {"kind": "sequence"},
}


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreReader:
    folder: Path = tmp_path_factory.mktemp("loader") / "store"
    DataPreprocessor.from_dataset(Items(), folder, num_workers=0, fields=FIELDS).run()
    return StoreReader(folder)
