"""What every transform does to one image or volume, told a second time in NumPy and SciPy: slow and plain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.interpolate
import scipy.ndimage
import torch
from tests.augment.reference import Row, normals, rows_of

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
from flatout.types import Array


def refer_image(transform: Any, x: torch.Tensor, params: Any, kind: str = "image") -> Array:
    """The batch that `transform.apply(x, params, kind)` should give, sample by sample."""
    change = REFERENCES[type(transform)]
    samples = x.to(torch.float64).numpy() if x.is_floating_point() else x.numpy()
    made = []
    for sample, row in zip(samples, rows_of(params, len(samples)), strict=True):
        is_left = not row["active"] or (type(transform) in INTENSITY and kind != "image")
        made.append(sample if is_left else change(sample, row, transform, kind))
    return np.stack(made)


def flip(sample: Array, row: Row, transform: Any, kind: str) -> Array:
    return np.flip(sample, [axis for axis, is_on in zip(transform.axes, row["flipped"], strict=True) if is_on])


def turn90(sample: Array, row: Row, transform: Any, kind: str) -> Array:
    return np.rot90(sample, int(row["turns"]), transform.axes)


def random_crop(sample: Array, row: Row, transform: Any, kind: str) -> Array:
    window = [slice(first, first + length) for first, length in zip(row["start"], transform.size, strict=True)]
    return sample[(slice(None), *window)]


def affine(sample: Array, row: Row, transform: Any, kind: str) -> Array:
    size = np.array(sample.shape[1:])
    num_axes = len(size)
    forward = np.eye(num_axes)
    planes = [(0, 1)] if num_axes == 2 else [(1, 2), (0, 2), (0, 1)]
    for (one, other), degrees in zip(planes, row["rotation_deg"].astype(np.float64), strict=True):
        turn, angle = np.eye(num_axes), np.deg2rad(degrees)
        turn[one, one] = turn[other, other] = np.cos(angle)
        turn[one, other], turn[other, one] = -np.sin(angle), np.sin(angle)
        forward = forward @ turn
    for (one, other), degrees in zip(planes, row["shear_deg"].astype(np.float64), strict=True):
        slant = np.eye(num_axes)
        slant[one, other] = np.tan(np.deg2rad(degrees))
        forward = forward @ slant
    spacing = np.diag(transform.spacing or (1.0,) * num_axes)
    backward = np.linalg.inv(np.linalg.inv(spacing) @ forward @ spacing * float(row["scale"]))
    centre = (size - 1) / 2
    output = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij")).reshape(num_axes, -1)
    shift = centre + row["translation"].astype(np.float64)
    places = backward @ (output - shift[:, None]) + centre[:, None]
    return seen_at(sample, places.reshape(num_axes, *size), transform, kind)


def elastic(sample: Array, row: Row, transform: Any, kind: str) -> Array:
    size = sample.shape[1:]
    field = row["points"].astype(np.float64)
    knots = np.arange(-3.0, transform.num_cells + 4.0)
    for axis, length in enumerate(size):
        spline = scipy.interpolate.BSpline(knots, np.moveaxis(field, 1 + axis, 0), 3)
        at = (np.arange(length) + 0.5) * transform.num_cells / length
        field = np.moveaxis(spline(at), 0, 1 + axis)
    cells = np.array(size).reshape(-1, *(1,) * len(size)) / transform.num_cells
    output = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij"))
    return seen_at(sample, output + field * cells, transform, kind)


def seen_at(sample: Array, places: Array, transform: Any, kind: str) -> Array:
    """Interpolated, or the nearest, with SciPy's own rule for what lies outside."""
    mode = "nearest" if kind == "distance" or transform.padding == "border" else "grid-constant"
    order = 0 if kind == "mask" else 1
    return np.stack([scipy.ndimage.map_coordinates(one, places, order=order, mode=mode) for one in sample])


def brightness(sample: Array, row: Row, transform: Any, kind: str) -> Array:
    return sample + float(row["shift"]) * sample.std()


def contrast(sample: Array, row: Row, transform: Any, kind: str) -> Array:
    return (sample - sample.mean()) * float(row["factor"]) + sample.mean()


def gamma(sample: Array, row: Row, transform: Any, kind: str) -> Array:
    low, high = sample.min(), sample.max()
    share = (sample - low) / (high - low)
    return (
        np.where(share > 1e-4, share ** float(row["gamma"]), share * 1e-4 ** (float(row["gamma"]) - 1))
        * (high - low)
        + low
    )


def noise(sample: Array, row: Row, transform: Any, kind: str) -> Array:
    return sample + transform.std * sample.std() * normals(row["states"], sample.size).reshape(sample.shape)


def blur(sample: Array, row: Row, transform: Any, kind: str) -> Array:
    for axis in range(1, sample.ndim):
        sample = scipy.ndimage.gaussian_filter1d(
            sample, float(row["sigma"]), axis, mode="nearest", radius=transform._radius
        )
    return sample


def cutout(sample: Array, row: Row, transform: Any, kind: str) -> Array:
    cut = sample.copy()
    for start, width in zip(row["start"], row["width"], strict=True):
        box = [slice(first, first + length) for first, length in zip(start, width, strict=True)]
        cut[(slice(None), *box)] = transform.fill
    return cut


INTENSITY: dict[type, Callable[[Array, Row, Any, str], Array]] = {
    GPUBrightness: brightness,
    GPUContrast: contrast,
    GPUGamma: gamma,
    GPUImageNoise: noise,
    GPUBlur: blur,
    GPUCutout: cutout,
}
REFERENCES: dict[type, Callable[[Array, Row, Any, str], Array]] = INTENSITY | {
    GPUFlip: flip,
    GPUTurn90: turn90,
    GPURandomCrop: random_crop,
    GPUAffine: affine,
    GPUElastic: elastic,
}
