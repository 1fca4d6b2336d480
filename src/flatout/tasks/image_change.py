"""Images varied as the config's `augmentation.images` says, in place of what a task does by itself."""

from __future__ import annotations

from collections.abc import Mapping

from flatout.augment import BatchAugment, get_gpu_image_transforms
from flatout.augment.image_transform import Kind
from flatout.config import Config
from flatout.errors import ConfigError
from flatout.train import TaskData

KINDS: dict[str, Kind] = {"image": "image", "volume": "image", "mask": "mask", "distance": "distance"}
"""A field's kind -> what transforms of images call it."""


def kinds_of(data: TaskData) -> dict[str, Kind]:
    """The fields that move together."""
    return {name: KINDS[spec.kind] for name, spec in data.fields.items() if spec.kind in KINDS}


def config_images(config: Config, kinds: Mapping[str, Kind]) -> BatchAugment | None:
    """What the config asks for; None where it names nothing.

    Raises:
        ConfigError: a crop, after which samples would have another size than the network.
    """
    images = config.augmentation.images
    if not images.named:
        return None
    if images.random_crop is not None:
        raise ConfigError(
            f"augmentation.images.random_crop: the network of task {config.task} is made for the size of the "
            "samples; leave it out, or give the fields another size"
        )
    return BatchAugment(get_gpu_image_transforms(config, kinds), seed=config.seed)


def refuse_images(config: Config) -> None:
    """Refuse them where samples are varied one by one.

    Raises:
        ConfigError: the config names some.
    """
    if named := config.augmentation.images.named:
        raise ConfigError(
            f"augmentation.images.{next(iter(named))} is done to whole batches: set use_gpu_augment: true, or "
            "leave augmentation.images out"
        )
