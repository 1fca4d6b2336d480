"""Heart sounds: contrastive pre-training on cardiac cycles and their parts, then a classifier of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from flatout.augment.ready import CHAIN
from flatout.config import Config, list_tasks
from flatout.errors import ConfigError
from flatout.tasks.heart_labels import LabelModule
from flatout.tasks.heart_modules import HeartSoundModule, PretrainModule
from flatout.tasks.heart_views import (
    SampleChange,
    SampleViews,
    device_change,
    device_views,
    downstream_chain,
    kept_views,
    pretrain_chain,
)
from flatout.train import Augment, SampleTransform, Task, TaskData
from flatout.train.weights import read_weights

PRETRAIN, FINETUNE = "pretrain", "finetune"


class HeartSound(Task):
    """Cycles of heart sound recordings. `mode` says what is trained; `pretrain` unless the config does."""

    name = "heart_sound"
    defaults: ClassVar[Mapping[str, Any]] = list_tasks()["heart_sound"]
    before: ClassVar[Mapping[str, Any]] = {
        "batch_size": 64,
        "num_workers": 4,
        "prefetch_factor": 2,
        "pin_memory": True,
        "persistent_workers": False,
        "precision": "16-mixed",
        "cache_in_memory": False,
        "use_gpu_augment": False,
        "use_fast_loader": False,
    }
    after: ClassVar[Mapping[str, Any]] = {
        "batch_size": 64,
        "num_workers": 8,
        "prefetch_factor": 4,
        "pin_memory": True,
        "persistent_workers": True,
        "precision": "16-mixed",
        "cache_in_memory": True,
        "use_gpu_augment": True,
        "view_cache_refresh_epochs": 5,
    }
    further: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"batch_size": 128, "scale_learning_rate": "linear"},
        {"batch_size": 256, "scale_learning_rate": "linear"},
    )
    """What the guide proposes to try next, over `after`."""
    reads = (
        "mode",
        "model.dim",
        "model.num_layers",
        "model.dropout",
        "model.params",
        "augmentation.sample_rate",
        *(f"augmentation.{name}" for name in CHAIN),
    )

    def module(self, config: Config, data: TaskData) -> HeartSoundModule:
        """The network of the config's mode.

        Raises:
            ConfigError: samples, labels or `pretrained` do not fit the mode.
            TrainError: the pretrained weights cannot be read.
        """
        if _mode(config) == PRETRAIN:
            return PretrainModule(config, data)
        module = LabelModule(config, data)
        if _mode(config) == FINETUNE:
            _check_pretrained(config, module)
        return module

    def augmentation(self, config: Config, data: TaskData) -> Augment:
        """Two views on the device, or from the bank; for labels, the signal itself changed."""
        field = data.field_of("signal").name
        if _mode(config) != PRETRAIN:
            return device_change(config, field)
        if data.store is not None and not config.use_gpu_augment:
            return kept_views(config, data.store, field)
        return device_views(config, field)

    def sample_transform(self, config: Config, data: TaskData) -> SampleTransform:
        """The same by SciPy, sample by sample."""
        field = data.field_of("signal").name
        if _mode(config) != PRETRAIN:
            return SampleChange(field, downstream_chain(config, field))
        return SampleViews(field, pretrain_chain(config, field))


def _mode(config: Config) -> str:
    return config.mode or str(HeartSound.defaults["mode"])


def _check_pretrained(config: Config, module: LabelModule) -> None:
    """Weights of another encoder would be left out one by one, and nothing of the pre-training be left.

    Raises:
        ConfigError: there are none, or they are of another encoder.
        TrainError: the file cannot be used.
    """
    if config.pretrained is None:
        raise ConfigError(
            "mode finetune starts from weights: give pretrained (--pretrained), as best.safetensors or a "
            "checkpoint of a run with mode pretrain. From new weights it is mode supervised"
        )
    weights = read_weights(config.pretrained)
    for name, own in module.state_dict().items():
        given = weights.get(name)
        if ".encoder." not in name or (given is not None and given.shape == own.shape):
            continue
        got = "nothing" if given is None else tuple(given.shape)
        raise ConfigError(
            f"pretrained: {config.pretrained} is of another encoder: {name} got {got}, wanted "
            f"{tuple(own.shape)}. Use the model.dim and model.num_layers that it was pre-trained with"
        )
