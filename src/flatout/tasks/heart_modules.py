"""What is trained on heart sounds: views that are alike, or classes; each as a module of numbers by sample."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from flatout.augment import (
    GPUCompose,
    SampleKeys,
    draw_keys,
    get_gpu_downstream_transforms,
    get_gpu_pretrain_transforms,
    split_substructures_batch,
)
from flatout.augment.filters import DEFAULT_SAMPLE_RATE
from flatout.augment.ready import AugmentationConfig
from flatout.config import Config
from flatout.errors import ConfigError, TrainError
from flatout.tasks.contrastive import PART_WEIGHT, contrast, contrast_parts
from flatout.tasks.heart_model import NUM_LAYERS, WIDTH, ContrastModel, Encoder, LabelModel
from flatout.tasks.heart_views import NUM_PARTS, sample_rate
from flatout.tasks.recalls import Recalls
from flatout.train import Batch, TaskData, TaskModule
from flatout.types import FieldSpec

EVALUATION_EPOCH = 0
"""Validation draws its views for this epoch each time: its losses can be compared."""
VIEWS = ("view1", "view2", "subs1", "subs2")
LABEL_PARAMS = ("num_classes", "freeze_encoder")

_log = logging.getLogger(__name__)


class HeartSoundModule(TaskModule):
    """What both trainings share: the signal's field, and augmentation that the module does itself."""

    def __init__(self, config: Config, data: TaskData, model: nn.Module) -> None:
        super().__init__(config, data, model)
        self.signal = data.field_of("signal").name
        self.use_gpu_augment = False
        self.gpu_augment: GPUCompose | None = None

    def enable_gpu_augment(
        self, augmentation_config: AugmentationConfig = None, sample_rate: int = DEFAULT_SAMPLE_RATE
    ) -> None:
        """Augment train batches here, on the device: for a Lightning Trainer of your own with any loader.

        `fit` does it without this.

        Args:
            augmentation_config: strengths and probabilities; absent: the defaults.
            sample_rate: of the signals, for settings in Hz.

        Raises:
            ConfigError, AugmentError: an impossible setting.
        """
        self.gpu_augment = self.transforms(augmentation_config, sample_rate).to(self.device)
        self.use_gpu_augment = True

    def transforms(self, config: AugmentationConfig, rate: int) -> GPUCompose:
        """The chain of this training."""
        raise NotImplementedError

    def augmented(self, batch: Batch, chain: GPUCompose, epoch: int) -> Batch:
        """A new batch, changed by `chain` whatever mode it is in.

        Raises:
            TrainError: the batch has no signal.
        """
        raise NotImplementedError

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """As of every task, with the batch augmented first where that is enabled."""
        if self.gpu_augment is not None:
            batch = self.augmented(batch, self.gpu_augment, self.current_epoch)
        return super().training_step(batch, batch_idx)

    def keys_of(self, batch: Batch, epoch: int) -> SampleKeys | None:
        """What a batch's draws follow from; None: torch's generator, where a loader gives no keys."""
        if "key" not in batch:
            return None
        return draw_keys(batch["key"], seed=self.config.seed, epoch=epoch)

    def changed(self, batch: Batch, name: str, chain: GPUCompose, keys: SampleKeys | None) -> Tensor:
        """A field of the batch, or the signal where it has no such one, after `chain`."""
        x = batch.get(name, batch.get(self.signal))
        if x is None:
            raise TrainError(f"the batch has neither '{name}' nor '{self.signal}', only {', '.join(batch)}")
        made: Tensor = chain.apply(x, chain.sample(x, keys))
        return made


class PretrainModule(HeartSoundModule):
    """Two views of a cycle are alike, and so is each of their parts; nobody's label is looked at.

    `retrieval` is the share of cycles whose other view is the most similar one of the batch, `part_retrieval`
    the same of parts.
    """

    def __init__(self, config: Config, data: TaskData) -> None:
        _check_params(config, ())
        super().__init__(config, data, ContrastModel(_encoder(config, data)))
        self._rate = sample_rate(config, self.signal)

    def transforms(self, config: AugmentationConfig, rate: int) -> GPUCompose:
        """All transforms: a view has no label to lose."""
        return get_gpu_pretrain_transforms(config, rate)

    def augmented(self, batch: Batch, chain: GPUCompose, epoch: int) -> Batch:
        """The batch with two views of what it has as view1 and view2, or of its signal, and their parts."""
        made, keys = dict(batch), self.keys_of(batch, epoch)
        for number in (1, 2):
            own = None if keys is None else keys.view(number - 1)
            view = self.changed(batch, f"view{number}", chain, own)
            made[f"view{number}"] = view
            made[f"subs{number}"] = split_substructures_batch(view, NUM_PARTS)
        return made

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        """Loss of each sample; outside training also how often it was told from the others."""
        valid = batch.get("valid")
        found = self.model(*(value.to(self.dtype) for value in self._views(batch)))
        cycles = contrast(found.cycle1, found.cycle2, valid)
        parts = contrast_parts(found.parts1, found.parts2, valid)
        loss = cycles.loss + PART_WEIGHT * parts.loss
        if self.training:
            return {"loss": loss}
        return {"loss": loss, "retrieval": cycles.is_found, "part_retrieval": parts.is_found}

    def _views(self, batch: Batch) -> list[Tensor]:
        if "view1" not in batch:
            if self.training:
                raise TrainError(
                    f"a train batch has no views, only {', '.join(batch)}: nothing augments it. Call "
                    "module.enable_gpu_augment(), or train with flatout.train.fit"
                )
            chain = self.transforms(self.config, self._rate).to(self.device)
            batch = self.augmented(batch, chain, EVALUATION_EPOCH)
        if "subs1" not in batch:
            parts = {f"subs{n}": split_substructures_batch(batch[f"view{n}"], NUM_PARTS) for n in (1, 2)}
            batch = {**batch, **parts}
        return [batch[name] for name in VIEWS]


class LabelModule(HeartSoundModule):
    """Cross entropy over the classes; `accuracy`, and over a whole split `balanced_accuracy`."""

    def __init__(self, config: Config, data: TaskData) -> None:
        _check_params(config, LABEL_PARAMS)
        label = data.field_of("label")
        num_classes = _num_classes(config, data, label)
        _tell_lacking(data, label)
        model = LabelModel(
            _encoder(config, data),
            num_classes,
            freezes_encoder=bool(config.model.params.get("freeze_encoder", False)),
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


def _encoder(config: Config, data: TaskData) -> Encoder:
    signal = data.field_of("signal")
    if signal.is_ragged or len(signal.shape) != 2:
        raise ConfigError(
            f"heart_sound wants cycles of one length, (C, T); field '{signal.name}' has {signal.shape}. Give "
            f"fields.{signal.name}.length, as 4000"
        )
    rate, section = sample_rate(config, signal.name), config.model
    return Encoder(int(signal.shape[0] or 1), rate, section.dim or WIDTH, section.num_layers or NUM_LAYERS)


def _num_classes(config: Config, data: TaskData, label: FieldSpec) -> int:
    """As the config says, as many as have names, or one more than the largest number."""
    if "num_classes" in config.model.params:
        return int(config.model.params["num_classes"])
    if label.classes:
        return len(label.classes)
    numbers = [int(value) for split in data.num_samples for value in data.values(label.name, split)]
    if numbers:
        return max(numbers) + 1
    raise ConfigError(
        f"field '{label.name}' holds numbers without names, so nobody knows how many classes there are: give "
        f"model.params.num_classes, or fields.{label.name}.classes"
    )


def _tell_lacking(data: TaskData, label: FieldSpec) -> None:
    """A split without a class measures less than it seems to."""
    for split in data.num_samples:
        there = {int(value) for value in data.values(label.name, split)}
        lacking = [name for number, name in enumerate(label.classes or ()) if number not in there]
        if there and lacking:
            _log.warning(
                "%s has no sample of %s: it is not measured there. Another splits.seed may divide better",
                split,
                ", ".join(lacking),
            )


def _check_params(config: Config, known: Sequence[str]) -> None:
    """A setting that nothing reads is a mistake."""
    if strange := [name for name in config.model.params if name not in known]:
        there = f"there are: {', '.join(known)}" if known else "there are none"
        raise ConfigError(f"model.params.{strange[0]}: this mode has no such setting; {there}")
