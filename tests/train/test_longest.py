"""The longest samples are tried: whatever comes later in an epoch is no larger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.train.tiny import Tiny, config_of, prepare

from flatout.config import load_config
from flatout.train import TaskModule, try_batches
from flatout.train.loaders import open_loaders
from flatout.train.longest import end_with_longest

NUM, LONGEST = 40, 60


class WideModule(TaskModule):
    """Runs out of memory at more than 300 steps a batch, padding included."""

    seen: list[tuple[int, ...]]

    def __init__(self, config: Any, data: Any) -> None:
        super().__init__(config, data, torch.nn.Linear(1, 1))
        self.seen = []

    def measure(self, batch: Any) -> Any:
        self.seen.append(tuple(batch["x"].shape))
        if batch["x"].numel() > 300:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        steps = batch["x"].float().mean(1, keepdim=True)
        return {"loss": self.model(steps)[:, 0].square()}


class Wide(Tiny):
    defaults: ClassVar[dict[str, Any]] = {"batch_size": 4, "fields": {"x": {"kind": "array", "ragged": True}}}

    def module(self, config: Any, data: Any) -> Any:
        Tiny.made = WideModule(config, data)
        return Tiny.made

    def augmentation(self, config: Any, data: Any) -> Any:
        return None


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """40 sequences of 2 steps, but for two of 60."""
    folder = tmp_path_factory.mktemp("ragged")
    lines = ["id,x,split"]
    for number in range(NUM):
        length = LONGEST if number in (17, 31) else 2
        np.save(folder / f"{number}.npy", np.zeros(length, np.float32))
        lines.append(f"s{number},{number}.npy,train")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    config = config_of(folder / "rows.csv", folder / "runs", task="tests.train.test_longest:Wide")
    prepare(config)
    return config


def test_the_second_batch_has_the_longest(ragged: dict[str, Any]) -> None:
    config = load_config(ragged, environ={})
    loaders = open_loaders(config, config)
    end_with_longest(loaders, config.loader_for("train"))
    first, second = loaders.splits["train"]
    loaders.close()
    assert set(first) == set(second)
    assert second["x"].shape == (4, LONGEST)
    assert second["x_length"].tolist() == [LONGEST, LONGEST, 2, 2]


def test_a_size_must_fit_the_longest(ragged: dict[str, Any], tmp_path: Path) -> None:
    """Batches of 8 fit in most places of an epoch, but not where a long sample is."""
    config = load_config(ragged, environ={}).model_dump(mode="json")
    asked = json.loads(json.dumps({"config": config, "output_dir": str(tmp_path)}))
    assert try_batches._trains(asked, 5) is True
    made: Any = Tiny.made
    assert made.seen[-1] == (5, LONGEST)
    assert try_batches._trains(asked, 8) is False
