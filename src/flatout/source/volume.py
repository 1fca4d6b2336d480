"""The `volume` kind: a decoded scan in, (C, X, Y, Z) out: turned, resampled, clipped, normalised, fitted.

The order is fixed: channels, orientation, spacing, window, normalise, size. So `pad_value` is one of the
values that are stored, and statistics never see padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout.errors import ConfigError, SampleError
from flatout.source.array import cast, plan_dtype, refuse_fractions
from flatout.source.geometry import check_orientation, crop, pad, reorient, resize, respace
from flatout.source.intensity import (
    check_window,
    clip,
    finite_minimum,
    plan_normaliser,
    range_of,
)
from flatout.source.resample import in_c_order
from flatout.types import Array, Context, Decoded, Geometry, Limits, Outputs, Steps

if TYPE_CHECKING:
    from flatout.config.fields import AnyField, Channels, VolumeField

_COMMUTES_WITH_CROP = {"none", "fixed", "unit"}


def make_steps(name: str, field: VolumeField, fields: Mapping[str, AnyField]) -> Steps:
    """Steps that give {name: (C, X, Y, Z)}, float32 unless `field.dtype` says otherwise.

    Without an affine (npy) the axes stay as they are, and a `spacing` is refused.

    Raises:
        ConfigError: a setting is impossible, or contradicts another one.
    """
    return _VolumeSteps(name, field)


class _VolumeSteps:
    def __init__(self, name: str, field: VolumeField) -> None:
        self._name = name
        self._field = field
        self._orientation = check_orientation(field.orientation) if field.orientation else None
        self._window = check_window(name, field.window)
        self._dtype = plan_dtype(name, field.dtype) or np.dtype(np.float32)
        self._work = work_dtype(name, self._dtype, field.normalise)
        self._normalise = plan_normaliser(name, field)
        self._crops_early = field.fit == "crop_pad" and field.normalise in _COMMUTES_WITH_CROP

    def __call__(self, decoded: Decoded, context: Context) -> Outputs:
        raw = spread_axes(decoded.array)
        context.geometry[self._name] = Geometry(raw.shape[:3], decoded.affine)
        if self._dtype.kind in "iu":
            refuse_fractions(raw, self._dtype)
        # What is not finite stays so, and is refused by the check that follows unless it is allowed.
        with np.errstate(invalid="ignore", over="ignore"):
            array, affine = self._place(
                select_channels(raw, self._field.channels), decoded.affine, context.limits
            )
            array = in_c_order(array, self._work)
            array = self._normalised(array, raw)
            array = in_c_order(self._fit(array, affine, context.limits), self._work)
        return {self._name: cast(array, self._dtype, is_computed=True)}

    def _place(self, array: Array, affine: Array | None, limits: Limits) -> tuple[Array, Array | None]:
        field = self._field
        if self._orientation:
            array, affine = reorient(array, affine, self._orientation)
        if field.spacing:
            if affine is None:
                raise SampleError(
                    "transform", "a spacing is set, but the file says nothing of its voxels' size"
                )
            array, affine = respace(array, affine, field.spacing, limits, self._work)
        if field.size and self._crops_early:
            array, affine = crop(array, affine, field.size)
        return array, affine

    def _normalised(self, array: Array, raw: Array) -> Array:
        if (self._window or self._normalise) and np.may_share_memory(array, raw):
            array = array.copy()
        if self._window:
            array = clip(array, self._window)
        return self._normalise(array, self._window or range_of(raw.dtype)) if self._normalise else array

    def _fit(self, array: Array, affine: Array | None, limits: Limits) -> Array:
        field = self._field
        if not field.size:
            return array
        if field.fit == "resize":
            return resize(array, affine, field.size, limits, self._work)[0]
        array, affine = crop(array, affine, field.size)
        value = finite_minimum(array) if field.pad_value is None else field.pad_value
        return pad(array, affine, field.size, value, limits)[0]


def work_dtype(name: str, dtype: np.dtype[Any], normalise: str) -> np.dtype[Any]:
    """The float type to compute in: float32, or float64 where the result is wider than that.

    Raises:
        ConfigError: whole numbers are asked for of a field that is normalised.
    """
    if dtype.kind in "iub" and normalise != "none":
        raise ConfigError(f"field '{name}': normalise: {normalise} gives fractions, dtype {dtype} holds none")
    if dtype.kind not in "fiu":
        raise ConfigError(f"field '{name}': dtype {dtype} is none for intensities; take float32, int16, ...")
    return np.dtype(np.float32) if dtype.kind == "f" and dtype.itemsize <= 4 else np.dtype(np.float64)


def spread_axes(array: Array) -> Array:
    """A stored array as (X, Y, Z, C): RGB records become channels, further axes are folded into one.

    Raises:
        SampleError: it has no values, fewer than two axes, or something else than real numbers.
    """
    if array.dtype.names:
        array = np.stack([array[name] for name in array.dtype.names], axis=-1)
    if array.dtype.kind not in "biuf":
        raise SampleError("transform", f"voxels of dtype {array.dtype}; wanted real numbers")
    if not array.size or array.ndim < 2:
        raise SampleError("transform", f"shape {array.shape} is no volume; wanted (X, Y, Z) or more axes")
    while array.ndim > 3 and array.shape[-1] == 1:
        array = array[..., 0]
    while array.ndim < 3:
        array = array[..., None]
    return array.reshape((*array.shape[:3], -1), order="F")


def select_channels(array: Array, rule: Channels) -> Array:
    """(X, Y, Z, C) -> (C, X, Y, Z) with the channels that `rule` leaves.

    Raises:
        SampleError: there are several and the rule is to refuse.
    """
    num_channels = array.shape[3]
    if num_channels > 1 and rule == "refuse":
        raise SampleError(
            "transform",
            f"{num_channels} channels or time points of shape {array.shape[:3]}, and channels is 'refuse'; "
            "set channels: first, mean or keep",
        )
    if rule == "first":
        array = array[..., :1]
    elif rule == "mean" and num_channels > 1:
        array = array.mean(axis=3, keepdims=True, dtype=np.float64)
    return np.moveaxis(array, 3, 0)
