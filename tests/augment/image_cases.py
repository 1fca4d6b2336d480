"""Every transform of images and volumes, and batches for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flatout.augment import (
    GPUAffine,
    GPUBlur,
    GPUBrightness,
    GPUContrast,
    GPUCutout,
    GPUElastic,
    GPUFlip,
    GPUGamma,
    GPUImageNoise,
    GPURandomCrop,
    GPUTurn90,
)

SPATIAL: dict[str, Callable[[float], Any]] = {
    "flip": lambda p: GPUFlip(axes=(-1, -2), p=p),
    "turn90": lambda p: GPUTurn90(p=p),
    "affine": lambda p: GPUAffine(shear_deg=(-10.0, 10.0), p=p),
    "affine_border": lambda p: GPUAffine((-40.0, 40.0), (0.7, 1.4), max_translation=0.3, p=p, padding="border"),
    "elastic": lambda p: GPUElastic(num_cells=3, p=p),
    "elastic_border": lambda p: GPUElastic(num_cells=2, p=p, padding="border"),
}
"""Those that keep the shape; the crop has tests of its own."""

INTENSITY: dict[str, Callable[[float], Any]] = {
    "brightness": lambda p: GPUBrightness(p=p),
    "contrast": lambda p: GPUContrast(p=p),
    "gamma": lambda p: GPUGamma(p=p),
    "noise": lambda p: GPUImageNoise(std=0.2, p=p),
    "blur": lambda p: GPUBlur(p=p),
    "cutout": lambda p: GPUCutout(num_boxes=2, p=p, fill=0.25),
}
IMAGE_CASES = SPATIAL | INTENSITY

SHAPES = [(6, 2, 12, 12), (4, 1, 6, 9, 9)]
"""An image and a volume, square where quarter turns need it."""


def crop_for(shape: tuple[int, ...]) -> GPURandomCrop:
    """Two values less along each axis."""
    return GPURandomCrop([length - 2 for length in shape[2:]])


def images(shape: tuple[int, ...] = SHAPES[0], seed: int = 0) -> Tensor:
    """Rough, bright and dark samples, none centred."""
    made = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    return made * torch.linspace(0.5, 2.0, shape[0]).view(-1, *(1,) * (len(shape) - 1)) + 0.3


def label_masks(shape: tuple[int, ...] = SHAPES[0], dtype: torch.dtype = torch.int64, seed: int = 1) -> Tensor:
    """Labels 3, 40 and 200: no neighbours, so that averages would show."""
    chosen = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(seed))
    return torch.tensor([3, 40, 200])[chosen].to(dtype)
