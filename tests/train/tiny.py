"""A task of a user's own, as small as can be: a line through numbers, with dropout and noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn

from flatout.augment import draw_keys
from flatout.augment.draws import Draws
from flatout.store import DataPreprocessor
from flatout.train import Batch, Sample, Task, TaskData, TaskModule

NUM_TRAIN, NUM_VAL, NUM_TEST = 14, 5, 3
BATCH = 4
NUM_BATCHES = 4
"""Of an epoch: the last has two samples."""


class TinyModule(TaskModule):
    """Writes down the keys of every train batch."""

    def __init__(self, config: Any, data: TaskData) -> None:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 1))
        super().__init__(config, data, model)
        self.seen: list[list[int]] = []

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        if self.training:
            self.seen.append(batch["key"].tolist())
        error = self.model(batch["x"].to(self.dtype))[:, 0] - batch["y"].to(self.dtype)
        return {"loss": error.square(), "distance": error.abs()}


class Noise(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, batch: Batch, epoch: int) -> Batch:
        drawn = Draws(draw_keys(batch["key"], seed=self.seed, epoch=epoch), 6).uniform(slice(0, 6))
        return {**batch, "x": batch["x"] + 0.1 * drawn}


class Halve:
    """A transform of one sample, for the standard path."""

    def __call__(self, sample: Sample) -> Sample:
        return {**sample, "x": sample["x"] * 0.5}


class Tiny(Task):
    name = "tiny"
    defaults: ClassVar[dict[str, Any]] = {
        "batch_size": BATCH,
        "learning_rate": 0.01,
        "fields": {"x": {"kind": "array"}, "y": {"kind": "scalar"}},
    }
    made: LightningModule
    """The module of the newest run."""

    def module(self, config: Any, data: TaskData) -> LightningModule:
        Tiny.made = TinyModule(config, data)
        return Tiny.made

    def augmentation(self, config: Any, data: TaskData) -> Noise:
        return Noise(config.seed)


class Plain(Tiny):
    """Augments sample by sample on the standard path."""

    def sample_transform(self, config: Any, data: TaskData) -> Halve:
        return Halve()


class NotATask:
    defaults: ClassVar[dict[str, Any]] = {"batch_size": 3}


class SaveEach(Callback):
    """A checkpoint after every batch, by its number in the run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.number += 1
        trainer.save_checkpoint(self.folder / f"batch{self.number}.ckpt")


def write_rows(folder: Path) -> Path:
    """Raw files and their manifest."""
    folder.mkdir(parents=True)
    lines = ["id,x,y,split"]
    splits = ["train"] * NUM_TRAIN + ["val"] * NUM_VAL + ["test"] * NUM_TEST
    for number, split in enumerate(splits):
        x = np.random.default_rng(number).normal(size=6).astype(np.float32)
        np.save(folder / f"{number:02d}.npy", x)
        lines.append(f"s{number:02d},{number:02d}.npy,{float(x.sum()):.4f},{split}")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    return folder / "rows.csv"


def config_of(manifest: Path, output_dir: Path, **settings: Any) -> dict[str, Any]:
    return {
        "task": "tests.train.tiny:Tiny",
        "manifest": str(manifest),
        "preprocessed_data_dir": str(manifest.parent / "store"),
        "output_dir": str(output_dir),
        "splits": {"column": "split"},
        "epochs": 2,
        "num_workers": 0,
        "precision": "32",
        "logger": [],
        **settings,
    }


def prepare(config: dict[str, Any]) -> None:
    DataPreprocessor(config).run()


class Steady(Tiny):
    """Without dropout: what a step does depends on its samples alone."""

    def module(self, config: Any, data: TaskData) -> LightningModule:
        module = super().module(config, data)
        module.model[1] = nn.Identity()  # type: ignore[index]
        return module
