"""Segmentation: a picture or volume and its mask, a U-Net, a loss that looks at the boundary most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from flatout.augment import BatchAugment, draw_keys
from flatout.augment.draws import Draws
from flatout.config import Config, list_tasks
from flatout.errors import ConfigError, MissingDependencyError
from flatout.tasks.image_change import config_images, kinds_of, refuse_images
from flatout.train import Batch, Sample, Task, TaskData, TaskModule
from flatout.types import FieldSpec

BOUNDARY_WEIGHT = 4.0
"""How much more a pixel on the boundary counts than one far away."""
BOUNDARY_WIDTH = 3.0
"""Pixels (or mm) after which that has fallen to 1/e."""
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Values of any type that NumPy moves, by their bytes; it has no bfloat16."""
PARAMS = ("kernel_size", "up_kernel_size", "num_res_units", "act", "norm", "bias", "adn_ordering")
"""Further arguments of MONAI's U-Net that `model.params` may have."""
EPSILON = 1.0
"""Pixels added above and below in Dice: an empty mask that is found empty scores 1."""


class Segmentation(Task):
    """Image and mask, divided by patient; `MASK_distance`, which prepare makes once, weights the boundary."""

    name = "segmentation"
    defaults: ClassVar[Mapping[str, Any]] = list_tasks()["segmentation"]
    before: ClassVar[Mapping[str, Any]] = {
        "batch_size": 32,
        "num_workers": 0,
        "precision": "32",
        "deterministic": True,
        "use_fast_loader": False,
    }
    after: ClassVar[Mapping[str, Any]] = {
        "batch_size": 64,
        "num_workers": 8,
        "pin_memory": True,
        "persistent_workers": True,
        "prefetch_factor": 2,
        "precision": "16-mixed",
        "deterministic": False,
        "gradient_accumulation_steps": 1,
    }
    reads = (
        "eval_scales",
        "augmentation.images",
        "model.dim",
        "model.num_layers",
        "model.dropout",
        "model.params",
    )

    def module(self, config: Config, data: TaskData) -> SegmentationModule:
        """A U-Net for the mask's classes."""
        return SegmentationModule(config, data)

    def augmentation(self, config: Config, data: TaskData) -> FlipBatch | BatchAugment:
        """As the config says; else mirrored along each axis, each with probability one half."""
        return config_images(config, kinds_of(data)) or FlipBatch(*_spatial_fields(data), config.seed)

    def sample_transform(self, config: Config, data: TaskData) -> FlipSample:
        """Mirrored, one sample at a time."""
        refuse_images(config)
        return FlipSample(*_spatial_fields(data))


class SegmentationModule(TaskModule):
    """Cross entropy weighted towards the boundary, plus soft Dice; `dice` of the foreground as the metric."""

    def __init__(self, config: Config, data: TaskData) -> None:
        image, mask = _image(data), data.field_of("mask")
        shape = [axis for axis in image.shape[1:] if axis is not None]
        if len(shape) != len(image.shape) - 1:
            raise ConfigError(
                f"segmentation wants pictures of one size; field '{image.name}' has {image.shape}. Give "
                f"fields.{image.name}.size, as [256, 256]"
            )
        self._names = (image.name, mask.name, f"{mask.name}_distance")
        self._num_classes = _num_classes(config, mask.name)
        widths = _widths(config)
        net = _unet(config, len(shape), int(image.shape[0] or 1), self._num_classes)
        super().__init__(config, data, net)
        multiple = 2 ** (len(widths) - 1)
        self._padding = [edge for axis in reversed(shape) for edge in (0, -axis % multiple)]
        self._shape = shape

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        """Loss and foreground Dice of each sample."""
        image, target = batch[self._names[0]].to(self.dtype), self._target(batch)
        logits = self.predict(image)
        loss = self._cross_entropy(logits, target, batch.get(self._names[2]))
        loss = loss + 1.0 - _dice(logits.softmax(1)[:, 1:].sum(1), target)
        if self.training:
            return {"loss": loss}
        found = self._over_scales(image, logits).argmax(1) > 0
        return {"loss": loss, "dice": _dice(found.float(), target)}

    def predict(self, image: Tensor) -> Tensor:
        """(B, C, ...) in, logits (B, classes, ...) out, of any size: padded to what the U-Net halves evenly."""
        logits: Tensor = self.model(
            functional.pad(image, self._padding) if any(self._padding) else image
        ).float()
        for axis, length in enumerate(self._shape, 2):
            logits = logits.narrow(axis, 0, length)
        return logits

    def _over_scales(self, image: Tensor, logits: Tensor) -> Tensor:
        """Probabilities averaged over `eval_scales`; the pass at scale 1 is there already."""
        total = torch.zeros_like(logits)
        for scale in self.config.eval_scales:
            total += (logits if scale == 1.0 else self._at_scale(image, scale)).softmax(1)
        return total

    def _at_scale(self, image: Tensor, scale: float) -> Tensor:
        mode = "bilinear" if image.dim() == 4 else "trilinear"
        size = [max(1, round(axis * scale)) for axis in self._shape]
        multiple = 2 ** (len(_widths(self.config)) - 1)
        size = [axis + -axis % multiple for axis in size]
        small = functional.interpolate(image, size=size, mode=mode, align_corners=False)
        return functional.interpolate(
            self.model(small).float(), size=self._shape, mode=mode, align_corners=False
        )

    def _target(self, batch: Batch) -> Tensor:
        mask = batch[self._names[1]][:, 0]
        return mask.long() if self._num_classes > 2 else (mask > 0).long()

    def _cross_entropy(self, logits: Tensor, target: Tensor, distance: Tensor | None) -> Tensor:
        each = functional.cross_entropy(logits, target, reduction="none")
        if distance is None:
            return each.flatten(1).mean(1)
        weight = 1.0 + BOUNDARY_WEIGHT * torch.exp(-distance[:, 0].float().abs() / BOUNDARY_WIDTH)
        return (each * weight).flatten(1).sum(1) / weight.flatten(1).sum(1)


class FlipBatch(nn.Module):
    """Mirrors samples; image, mask and distance of a sample alike."""

    def __init__(self, names: list[str], num_axes: int, seed: int) -> None:
        super().__init__()
        self.names, self.num_axes, self.seed = names, num_axes, seed

    def forward(self, batch: Batch, epoch: int) -> Batch:
        """A new batch."""
        draws = Draws(draw_keys(batch["key"], seed=self.seed, epoch=epoch), self.num_axes)
        active = torch.stack([draws.chance(axis, 0.5) for axis in range(self.num_axes)])
        flip = _flip_on_host if active.device.type == "cpu" else _flip_on_device
        return {**batch, **{name: flip(batch[name], active) for name in self.names}}

    def extra_repr(self) -> str:
        return f"names={self.names}, num_axes={self.num_axes}, seed={self.seed}"


def _flip_on_device(x: Tensor, active: Tensor) -> Tensor:
    """(axes, B) of what is flipped; it is not waited for, at the price of two copies for each axis."""
    for axis, is_flipped in enumerate(active):
        x = torch.where(is_flipped.view(-1, *(1,) * (x.dim() - 1)), x.flip(-1 - axis), x)
    return x


def _flip_on_host(x: Tensor, active: Tensor) -> Tensor:
    """One copy of each sample, in one thread: for 64 pictures 2.3 ms of the processor instead of 17."""
    made = torch.empty_like(x)
    source, target = x.view(_WORDS[x.element_size()]).numpy(), made.view(_WORDS[x.element_size()]).numpy()
    for row, flipped in enumerate(active.T.tolist()):
        axes = tuple(-1 - axis for axis, is_flipped in enumerate(flipped) if is_flipped)
        target[row] = np.flip(source[row], axes)
    return made


class FlipSample:
    """The same for one sample in a worker."""

    def __init__(self, names: list[str], num_axes: int) -> None:
        self.names, self.num_axes = names, num_axes

    def __call__(self, sample: Sample) -> Sample:
        axes = [-1 - axis for axis in range(self.num_axes) if np.random.random() < 0.5]
        return {name: value.flip(axes) if name in self.names else value for name, value in sample.items()}


def _image(data: TaskData) -> FieldSpec:
    is_picture = any(spec.kind == "image" for spec in data.fields.values())
    return data.field_of("image" if is_picture else "volume")


def _spatial_fields(data: TaskData) -> tuple[list[str], int]:
    return list(kinds_of(data)), len(_image(data).shape) - 1


def _num_classes(config: Config, mask: str) -> int:
    """As the config says, or one more than the largest class that the mask's values become; two otherwise."""
    given = config.model.params.get("num_classes")
    if given is not None:
        if not isinstance(given, int) or given < 2:
            raise ConfigError(f"model.params.num_classes: got {given!r}, wanted a whole number, 2 or more")
        return given
    values = getattr(config.fields.get(mask), "values", None)
    return max(2, max(values.values()) + 1) if values else 2


def _widths(config: Config) -> list[int]:
    first, num_layers = config.model.dim or 16, config.model.num_layers or 4
    return [first * 2**level for level in range(num_layers)]


def _unet(config: Config, num_axes: int, in_channels: int, num_classes: int) -> nn.Module:
    params = {name: value for name, value in config.model.params.items() if name != "num_classes"}
    if strange := [name for name in params if name not in PARAMS]:
        raise ConfigError(
            f"model.params.{strange[0]}: segmentation has no such setting; there are: num_classes, "
            f"{', '.join(PARAMS)}"
        )
    try:
        from monai.networks.nets import UNet
    except ImportError as error:
        raise MissingDependencyError("task segmentation needs MONAI: pip install 'flatout[medical]'") from error
    widths = _widths(config)
    if len(widths) < 2:
        raise ConfigError("model.num_layers is 1; a U-Net has 2 or more")
    settings: dict[str, Any] = {
        "spatial_dims": num_axes,
        "in_channels": in_channels,
        "out_channels": num_classes,
        "channels": widths,
        "strides": [2] * (len(widths) - 1),
        "num_res_units": 1,
        "dropout": config.model.dropout or 0.0,
    }
    net: nn.Module = UNet(**settings | params)
    return net


def _dice(found: Tensor, target: Tensor) -> Tensor:
    """(B, ...) probabilities and classes in, 2 |A and B| / (|A| + |B|) of the foreground of each sample out."""
    found, wanted = found.flatten(1), (target > 0).flatten(1).float()
    return (2.0 * (found * wanted).sum(1) + EPSILON) / (found.sum(1) + wanted.sum(1) + EPSILON)
