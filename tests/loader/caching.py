"""What the tests of caches share: datasets that note what they decode, and what must hold."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flatout
from flatout.loader.cached import CachedDataset
from flatout.store.fill.log import CacheLog

NUM_ITEMS = 40
WAIT_S = 60.0
"""How long a child may take before a test gives up on it."""

MODULE = '''
import os, sys, time
import numpy as np
import torch
import flatout

class Items:
    """A function of the number alone; each decoding is noted in a file."""

    def __init__(self, notes, num_items=40, size=600, wait_s=0.0):
        self.notes, self.num_items, self.size, self.wait_s = notes, num_items, size, wait_s

    def __len__(self):
        return self.num_items

    def __getitem__(self, at):
        if not 0 <= at < self.num_items:
            raise IndexError(at)
        time.sleep(self.wait_s)
        descriptor = os.open(self.notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, b"%d\\n" % at)
        os.close(descriptor)
        signal = np.random.default_rng(at).random(self.size, dtype=np.float32)
        return {"signal": torch.from_numpy(signal), "label": at % 3, "name": f"item {at}"}

if __name__ == "__main__":
    dataset = flatout.cached(Items(sys.argv[2]), sys.argv[1], check=False, version="1")
    for at in range(len(dataset) - 1):
        dataset[at]
'''


@pytest.fixture
def items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module above, where child processes find it, too."""
    (tmp_path / "slow_items.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = import_module("slow_items")
    yield lambda **settings: module.Items(str(tmp_path / "notes"), **settings)
    del sys.modules["slow_items"]


def decoded(tmp_path: Path) -> list[int]:
    notes = tmp_path / "notes"
    return [int(line) for line in notes.read_text().splitlines()] if notes.exists() else []


def cached(dataset: Any, folder: Path, **settings: Any) -> CachedDataset:
    return flatout.cached(dataset, folder, **{"check": False, "version": "1", **settings})


def expected(at: int, size: int = 600) -> dict[str, Any]:
    signal = torch.from_numpy(np.random.default_rng(at).random(size, dtype=np.float32))
    return {"signal": signal, "label": at % 3, "name": f"item {at}"}


def assert_item(item: Any, at: int, size: int = 600) -> None:
    wanted = expected(at, size)
    assert list(item) == list(wanted)
    assert torch.equal(item["signal"], wanted["signal"])
    assert (item["label"], item["name"]) == (wanted["label"], wanted["name"])
    assert type(item["label"]) is int


def assert_all(dataset: CachedDataset, size: int = 600) -> None:
    for at in range(len(dataset)):
        assert_item(dataset[at], at, size)


class Listed:
    """A dataset of given items."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, at: int) -> Any:
        return self.items[at]


class Made:
    """A dataset of what a function gives."""

    def __init__(self, make: Callable[[int], Any], num_items: int = 12) -> None:
        self.make, self.num_items = make, num_items

    def __len__(self) -> int:
        return self.num_items

    def __getitem__(self, at: int) -> Any:
        return self.make(at)


def entries(folder: Path) -> list[Any]:
    logs = list(folder.glob("cache-*.jsonl"))
    return CacheLog(logs[0]).read_new() if logs else []
