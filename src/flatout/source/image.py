"""The `image` kind: a decoded picture in, (C, H, W) out: mode, resize, window, normalise, crop and pad.

Interpolation works on the stored pixels, padding comes last: so `pad_value` is one of the values that are
stored, and statistics never see padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from flatout.errors import SampleError
from flatout.source.array import cast, plan_dtype, refuse_fractions
from flatout.source.geometry import check_points, crop, pad
from flatout.source.intensity import check_window, clip, finite_minimum, plan_normaliser, range_of
from flatout.source.volume import work_dtype
from flatout.types import Array, Context, Decoded, Geometry, Limits, Outputs, Steps

if TYPE_CHECKING:
    from flatout.config.fields import AnyField, ImageField

_LUMA = (19595, 38470, 7471)
"""Weights of red, green and blue in grey (ITU-R 601), in 1/65536, as Pillow's."""
_STORED_AS_THEY_ARE = (np.dtype(np.uint8), np.dtype(np.uint16))


def make_steps(name: str, field: ImageField, fields: Mapping[str, AnyField]) -> Steps:
    """Steps that give {name: (C, H, W)}.

    uint8 and uint16 pictures stay so; others, and all that are clipped or normalised, become float32,
    unless `field.dtype` says otherwise.

    Raises:
        ConfigError: a setting is impossible, or contradicts another one.
    """
    return _ImageSteps(name, field)


class _ImageSteps:
    def __init__(self, name: str, field: ImageField) -> None:
        self._name = name
        self._field = field
        self._window = check_window(name, field.window)
        self._normalise = plan_normaliser(name, field)
        self._dtype = plan_dtype(name, field.dtype)
        self._work = work_dtype(name, self._dtype or np.dtype(np.float32), field.normalise)

    def __call__(self, decoded: Decoded, context: Context) -> Outputs:
        raw = channels_first(decoded.array)
        context.geometry[self._name] = Geometry(raw.shape[1:], decoded.affine)
        if self._dtype is not None and self._dtype.kind in "iu":
            refuse_fractions(raw, self._dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            array = convert_mode(raw, self._field.mode)
            if self._field.size and self._field.fit == "resize":
                array = resize_picture(array, self._field.size, context.limits)
            array = self._normalised(array, raw)
            if self._field.size and self._field.fit == "crop_pad":
                array = self._crop_pad(array, self._field.size, context.limits)
        return {self._name: cast(array, self._dtype or array.dtype, is_computed=True)}

    def _normalised(self, array: Array, raw: Array) -> Array:
        if not (self._window or self._normalise):
            return array if array.dtype in _STORED_AS_THEY_ARE else array.astype(self._work, copy=False)
        array = array.astype(self._work)
        if self._window:
            array = clip(array, self._window)
        return self._normalise(array, self._window or range_of(raw.dtype)) if self._normalise else array

    def _crop_pad(self, array: Array, size: tuple[int, int], limits: Limits) -> Array:
        array, _ = crop(array, None, size)
        value = finite_minimum(array) if self._field.pad_value is None else self._field.pad_value
        bounds = range_of(array.dtype)
        if bounds and not (bounds[0] <= value <= bounds[1] and float(value).is_integer()):
            raise SampleError("transform", f"pad_value {value:g} does not fit {array.dtype} pixels; set dtype")
        return pad(array, None, size, value, limits)[0]


def channels_first(array: Array) -> Array:
    """(H, W), (H, W, 1|3|4) or (1|3, H, W) -> (C, H, W); a fourth channel (alpha) is dropped.

    Raises:
        SampleError: any other shape, no pixels, or something else than real numbers.
    """
    if array.dtype.kind not in "biuf":
        raise SampleError("transform", f"pixels of dtype {array.dtype}; wanted real numbers")
    if array.ndim == 2 and array.size:
        return array[None]
    if array.ndim == 3 and array.size and array.shape[2] in (1, 3, 4):
        return np.moveaxis(array[:, :, :3], 2, 0)
    if array.ndim == 3 and array.size and array.shape[0] in (1, 3):
        return array
    raise SampleError("transform", f"shape {array.shape} is no picture; wanted (H, W), (H, W, 3) or (3, H, W)")


def convert_mode(array: Array, mode: str) -> Array:
    """(1 or 3, H, W) -> the same for `auto`, one grey channel for `L`, three channels for `RGB`."""
    if mode == "RGB" and len(array) == 1:
        return np.repeat(array, 3, axis=0)
    if mode != "L" or len(array) == 1:
        return array
    if array.dtype.kind == "f":
        weights = np.array(_LUMA, dtype=np.float64) / sum(_LUMA)
        grey: Array = (array * weights[:, None, None]).sum(axis=0, keepdims=True)
        return grey.astype(array.dtype)
    wide = np.dtype(np.uint32 if array.dtype.kind == "u" and array.dtype.itemsize <= 2 else np.int64)
    weights = np.array(_LUMA, dtype=wide)
    grey = (array.astype(wide) * weights[:, None, None]).sum(axis=0, keepdims=True, dtype=wide)
    return ((grey + wide.type(32768)) >> wide.type(16)).astype(array.dtype)


def resize_picture(array: Array, size: tuple[int, int], limits: Limits) -> Array:
    """(C, H, W) -> (C, *size), bilinear; where it shrinks, every old pixel counts (antialias).

    uint8 stays uint8, uint16 is rounded back, all else is float32.
    """
    from PIL import Image

    if array.shape[1:] == tuple(size):
        return array
    stored = array.dtype if array.dtype == np.uint8 else np.dtype(np.float32)
    check_points(np.array(size), array, limits, stored)
    width_height = (size[1], size[0])
    if array.dtype == np.uint8:
        pixels = array[0] if len(array) == 1 else np.moveaxis(array, 0, 2)
        image = Image.fromarray(np.ascontiguousarray(pixels))
        return channels_first(np.asarray(image.resize(width_height, Image.Resampling.BILINEAR)))
    planes = [
        Image.fromarray(np.ascontiguousarray(plane, dtype=np.float32)).resize(
            width_height, Image.Resampling.BILINEAR
        )
        for plane in array
    ]
    resized = np.stack([np.asarray(plane) for plane in planes])
    return np.rint(resized).astype(array.dtype) if array.dtype == np.uint16 else resized
