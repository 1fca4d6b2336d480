"""Pre-training on heart sounds as a module, and what every training on them shares."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from flatout.augment import (
    GPUCompose,
    SampleKeys,
    draw_keys,
    get_gpu_pretrain_transforms,
    split_substructures_batch,
)
from flatout.augment.filters import DEFAULT_SAMPLE_RATE
from flatout.augment.ready import AugmentationConfig
from flatout.config import Config
from flatout.errors import ConfigError, TrainError
from flatout.tasks.contrastive import PART_WEIGHT, contrast, contrast_parts
from flatout.tasks.heart_model import NUM_LAYERS, WIDTH, ContrastModel, Encoder
from flatout.tasks.heart_views import NUM_PARTS, sample_rate
from flatout.train import Batch, TaskData, TaskModule

EVALUATION_EPOCH = 0
"""Validation draws its views for this epoch each time: its losses can be compared."""
VIEWS = ("view1", "view2", "subs1", "subs2")


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
        check_params(config, ())
        super().__init__(config, data, ContrastModel(make_encoder(config, data)))
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


def make_encoder(config: Config, data: TaskData) -> Encoder:
    """The encoder that the samples and the config's `model` ask for.

    Raises:
        ConfigError: the samples differ in length.
    """
    signal = data.field_of("signal")
    if signal.is_ragged or len(signal.shape) != 2:
        raise ConfigError(
            f"heart_sound wants cycles of one length, (C, T); field '{signal.name}' has {signal.shape}. Give "
            f"fields.{signal.name}.length, as 4000"
        )
    rate, section = sample_rate(config, signal.name), config.model
    return Encoder(int(signal.shape[0] or 1), rate, section.dim or WIDTH, section.num_layers or NUM_LAYERS)


def check_params(config: Config, known: Sequence[str]) -> None:
    """A setting that nothing reads is a mistake.

    Raises:
        ConfigError: `model.params` has one.
    """
    if strange := [name for name in config.model.params if name not in known]:
        there = f"there are: {', '.join(known)}" if known else "there are none"
        raise ConfigError(f"model.params.{strange[0]}: this mode has no such setting; {there}")
