"""Cardiac CT: volumes from a table, and what its other columns say of them: classes, numbers, or both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from flatout.augment import BatchAugment
from flatout.config import Config, list_tasks
from flatout.errors import ConfigError
from flatout.tasks.image_change import config_images, refuse_images
from flatout.tasks.targets import count_classes, scale_of
from flatout.tasks.volume_augment import VaryVolume, vary_batches
from flatout.tasks.volume_nets import make_net
from flatout.train import Batch, Task, TaskData, TaskModule
from flatout.types import FieldSpec


class CardiacCT(Task):
    """A head for each label and each number that the samples have; null fields have none."""

    name = "cardiac_ct"
    defaults: ClassVar[Mapping[str, Any]] = list_tasks()["cardiac_ct"]
    before: ClassVar[Mapping[str, Any]] = {
        "batch_size": 8,
        "num_workers": 4,
        "use_fast_loader": False,
        "cache_config.enable_cache": False,
    }
    after: ClassVar[Mapping[str, Any]] = {
        "batch_size": 8,
        "num_workers": 4,
        "use_fast_loader": True,
        "cache_config.enable_cache": True,
        "cache_config.cache_size": 1000,
        "cache_config.preload_train_data": False,
        "cache_config.preload_val_data": False,
    }
    reads = (
        "augmentation.images",
        "model.network",
        "model.dim",
        "model.num_layers",
        "model.dropout",
        "model.params",
    )

    def module(self, config: Config, data: TaskData) -> CardiacModule:
        """One network whose last layer is all heads."""
        return CardiacModule(config, data)

    def augmentation(self, config: Config, data: TaskData) -> BatchAugment:
        """As the config says; else turned, shifted, of another contrast and brightness, with noise."""
        name = data.field_of("volume").name
        return config_images(config, {name: "image"}) or vary_batches(name, config.seed)

    def sample_transform(self, config: Config, data: TaskData) -> VaryVolume:
        """That last, one volume at a time."""
        refuse_images(config)
        return VaryVolume(data.field_of("volume").name)


class CardiacModule(TaskModule):
    """The sum of the heads' losses; `NAME_accuracy` of each label and `NAME_mae` of each number."""

    def __init__(self, config: Config, data: TaskData) -> None:
        volume = data.field_of("volume")
        heads = find_heads(data)
        num_outputs = sum(head.width for head in heads)
        net = make_net(config, int(volume.shape[0] or 1), checked_size(volume), num_outputs)
        super().__init__(config, data, net)
        self.heads = nn.ModuleList(heads)
        self._volume = volume.name
        self._widths = [head.width for head in heads]

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        """Loss and metrics of each sample."""
        outputs = self.model(batch[self._volume].to(self.dtype)).float()
        found: dict[str, Tensor] = {"loss": torch.zeros_like(outputs[:, 0])}
        for head, output in zip(self.heads, outputs.split(self._widths, 1), strict=True):
            measured: dict[str, Tensor] = head(output, batch)
            found["loss"] = found["loss"] + measured.pop("loss")
            found |= measured
        return found


class ClassHead(nn.Module):
    """Cross entropy over the classes of a label."""

    def __init__(self, field: str, num_classes: int) -> None:
        super().__init__()
        self.field, self.width = field, num_classes

    def forward(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """(B, classes) and a batch in, numbers of each sample out."""
        target = batch[self.field].long()
        loss = functional.cross_entropy(output, target, reduction="none")
        return {"loss": loss, f"{self.field}_accuracy": (output.argmax(1) == target).float()}


class NumberHead(nn.Module):
    """Distance to a number, in its deviations over the train split; those are saved with the weights."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, field: str, mean: float, deviation: float) -> None:
        super().__init__()
        self.field, self.width = field, 1
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("deviation", torch.tensor(deviation))

    def forward(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """(B, 1) and a batch in, numbers of each sample out; nothing is learned from a target that is NaN."""
        target = batch[self.field].float()
        wanted = (target - self.mean) / self.deviation
        is_known = ~wanted.isnan()
        loss = functional.smooth_l1_loss(output[:, 0], wanted.nan_to_num(), reduction="none")
        error = (output[:, 0] * self.deviation + self.mean - target).abs()
        return {"loss": torch.where(is_known, loss, 0.0), f"{self.field}_mae": error}


def find_heads(data: TaskData) -> list[ClassHead | NumberHead]:
    """A head for each label and number of the samples.

    Raises:
        ConfigError: there is none, or one of them is the same everywhere.
    """
    heads: list[ClassHead | NumberHead] = []
    for name, spec in data.fields.items():
        if spec.kind == "label":
            heads.append(ClassHead(name, count_classes(data, name)))
        elif spec.kind == "scalar":
            heads.append(NumberHead(name, *scale_of(data, name)))
    if heads:
        return heads
    there = ", ".join(f"{name} ({spec.kind})" for name, spec in data.fields.items())
    raise ConfigError(
        f"cardiac_ct predicts labels and numbers; the samples have neither: {there}. Name a column of the "
        "manifest under 'fields', as fields: {diagnosis: {kind: label}} or {age: {kind: scalar}}"
    )


def checked_size(volume: FieldSpec) -> list[int]:
    """Voxels along each axis of all volumes.

    Raises:
        ConfigError: they differ.
    """
    size = [axis for axis in volume.shape[1:] if axis is not None]
    if len(size) == len(volume.shape) - 1:
        return size
    raise ConfigError(
        f"cardiac_ct wants volumes of one size, and those of field '{volume.name}' differ. Give "
        f"fields.{volume.name}.size, as [96, 96, 96], and prepare again"
    )
