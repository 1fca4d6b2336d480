"""`augmentation.images` of the config takes the place of what the tasks of images do by themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flatout.augment import BatchAugment
from flatout.config import Config, load_config
from flatout.errors import ConfigError
from flatout.tasks.cardiac_ct import CardiacCT
from flatout.tasks.image_change import kinds_of
from flatout.tasks.segmentation import FlipBatch, Segmentation
from flatout.train import TaskData
from flatout.types import FieldSpec

FLAT = TaskData(
    {
        "slice": FieldSpec("slice", "image", "float32", (1, 8, 8)),
        "heart": FieldSpec("heart", "mask", "uint8", (1, 8, 8)),
        "heart_distance": FieldSpec("heart_distance", "distance", "float32", (1, 8, 8)),
        "patient": FieldSpec("patient", "text", "uint8", (None,)),
    }
)
VOLUME = TaskData({"ct": FieldSpec("ct", "volume", "float32", (1, 6, 8, 8))})


def config_of(task: str, **images: Any) -> Config:
    return load_config({"task": task, "seed": 3, "augmentation": {"images": images}}, environ={})


def test_without_it_the_task_does_its_own() -> None:
    assert isinstance(Segmentation().augmentation(config_of("segmentation"), FLAT), FlipBatch)
    own = CardiacCT().augmentation(config_of("cardiac_ct"), VOLUME)
    assert "GPUAffine" in str(own)
    assert "GPUFlip" not in str(own)


def test_masks_and_distances_go_along() -> None:
    assert kinds_of(FLAT) == {"slice": "image", "heart": "mask", "heart_distance": "distance"}
    augment = Segmentation().augmentation(config_of("segmentation", flip={"p": 1.0}, noise={"p": 1.0}), FLAT)
    assert isinstance(augment, BatchAugment)
    assert augment.seed == 3
    image = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    batch = {
        "slice": image,
        "heart": (image > 0.5).byte(),
        "heart_distance": image - 0.5,
        "key": torch.arange(2),
    }
    found = augment(batch, 0)
    assert found["heart"].equal(batch["heart"].flip(-1))
    assert found["heart_distance"].equal(batch["heart_distance"].flip(-1))
    assert not found["slice"].equal(image.flip(-1))


def test_volumes_are_changed_as_the_config_says() -> None:
    augment = CardiacCT().augmentation(config_of("cardiac_ct", flip={"axes": [-3], "p": 1.0}), VOLUME)
    batch = {"ct": torch.rand(2, 1, 6, 8, 8), "key": torch.arange(2)}
    assert augment(batch, 0)["ct"].equal(batch["ct"].flip(2))


@pytest.mark.parametrize(("task", "data"), [(Segmentation(), FLAT), (CardiacCT(), VOLUME)])
def test_what_cannot_be_done_is_told(task: Any, data: TaskData) -> None:
    with pytest.raises(ConfigError, match=rf"random_crop: the network of task {task.name}"):
        task.augmentation(config_of(task.name, random_crop={"size": [4, 4]}), data)
    with pytest.raises(ConfigError, match=r"images\.flip is done to whole batches: set use_gpu_augment: true"):
        task.sample_transform(config_of(task.name, flip={}), data)
    assert task.sample_transform(config_of(task.name), data) is not None
