"""Classes of heart sounds: a module that learns them from new weights or pre-trained ones."""

from __future__ import annotations

import logging

from torch import Tensor
from torch.nn import functional

from flatout.augment import GPUCompose, get_gpu_downstream_transforms
from flatout.augment.ready import AugmentationConfig
from flatout.config import Config
from flatout.errors import ConfigError
from flatout.tasks.heart_model import LabelModel
from flatout.tasks.heart_modules import HeartSoundModule, check_params, make_encoder
from flatout.tasks.recalls import Recalls
from flatout.train import Batch, TaskData
from flatout.types import FieldSpec

PARAMS = ("num_classes", "freeze_encoder")

_log = logging.getLogger(__name__)


class LabelModule(HeartSoundModule):
    """Cross entropy over the classes; `accuracy`, and over a whole split `balanced_accuracy`."""

    def __init__(self, config: Config, data: TaskData) -> None:
        check_params(config, PARAMS)
        label = data.field_of("label")
        num_classes = _num_classes(config, data, label)
        _tell_lacking(data, label)
        model = LabelModel(
            make_encoder(config, data),
            num_classes,
            freezes_encoder=_freezes_encoder(config),
            dropout=config.model.dropout or 0.0,
        )
        super().__init__(config, data, model)
        self._label = label.name
        self.recalls = Recalls(num_classes)

    def transforms(self, config: AugmentationConfig, rate: int) -> GPUCompose:
        """Those that leave a label alone."""
        return get_gpu_downstream_transforms(config, rate)

    def augmented(self, batch: Batch, chain: GPUCompose, epoch: int) -> Batch:
        """The batch with its signal changed."""
        return {**batch, self.signal: self.changed(batch, self.signal, chain, self.keys_of(batch, epoch))}

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        """Loss of each sample; outside training also whether its class was found."""
        label = batch[self._label].long()
        logits = self.model(batch[self.signal].to(self.dtype)).float()
        loss = functional.cross_entropy(logits, label, reduction="none")
        if self.training:
            return {"loss": loss}
        is_right = (logits.argmax(1) == label).float()
        self.recalls.add(label, is_right, batch.get("valid"))
        return {"loss": loss, "accuracy": is_right}

    def on_validation_epoch_start(self) -> None:
        self.recalls.reset()

    def on_test_epoch_start(self) -> None:
        self.recalls.reset()

    def on_validation_epoch_end(self) -> None:
        self._log_balanced("val")

    def on_test_epoch_end(self) -> None:
        self._log_balanced("test")

    def _log_balanced(self, split: str) -> None:
        counts = self.recalls.counts
        if self.trainer.world_size > 1:
            counts = self.trainer.strategy.reduce(counts.clone(), reduce_op="sum")
        # Equal on all ranks by now: the mean that Lightning makes of them is the number itself.
        self.log(f"{split}_balanced_accuracy", self.recalls.balanced(counts), sync_dist=True)


def _num_classes(config: Config, data: TaskData, label: FieldSpec) -> int:
    """As the config says, as many as have names, or one more than the largest number."""
    named, given = len(label.classes or ()), config.model.params.get("num_classes")
    if given is not None and (not isinstance(given, int) or given < named):
        raise ConfigError(f"model.params.num_classes: got {given!r}, wanted a whole number, {named} or more")
    if given or named:
        return given or named
    numbers = [int(value) for split in data.num_samples for value in data.values(label.name, split)]
    if numbers:
        return max(numbers) + 1
    raise ConfigError(
        f"field '{label.name}' holds numbers without names, so nobody knows how many classes there are: give "
        f"model.params.num_classes, or fields.{label.name}.classes"
    )


def _freezes_encoder(config: Config) -> bool:
    given = config.model.params.get("freeze_encoder", False)
    if not isinstance(given, bool):
        raise ConfigError(f"model.params.freeze_encoder: got {given!r}, wanted true or false")
    return given


def _tell_lacking(data: TaskData, label: FieldSpec) -> None:
    """A split without a class teaches, or measures, less than it seems to."""
    for split in data.num_samples:
        there = {int(value) for value in data.values(label.name, split)}
        lacking = [name for number, name in enumerate(label.classes or ()) if number not in there]
        if there and lacking:
            _log.warning(
                "%s has no sample of %s: it %s. Another splits.seed may divide better",
                split,
                ", ".join(lacking),
                "cannot be learned" if split == "train" else "is not measured there",
            )
