"""The `sequence` kind: a series of vectors of any length, stored as (T, C)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from flatout.errors import ConfigError, SampleError
from flatout.source.array import cast, plan_dtype
from flatout.types import Array, Context, Decoded, Outputs, Steps

if TYPE_CHECKING:
    from flatout.config.fields import AnyField, SequenceField


def make_steps(name: str, field: SequenceField, fields: Mapping[str, AnyField]) -> Steps:
    """Steps that choose and scale channels of a decoded (T, C) or (T,); scaled ones become float32.

    `columns` choose by name first, `channels` then by position among them. Unscaled sequences keep the dtype
    of their file unless `dtype` says otherwise; scaled ones are rounded to one of integers.

    Raises:
        ConfigError: `scale` or `shift` has another number of values than there are channels.
    """
    chosen = field.channels or field.columns
    for what, numbers in (("scale", field.scale), ("shift", field.shift)):
        if chosen and isinstance(numbers, list) and len(numbers) not in (1, len(chosen)):
            raise ConfigError(f"field '{name}': {what} has {len(numbers)} values for {len(chosen)} channels")
    return _SequenceSteps(name, field)


class _SequenceSteps:
    def __init__(self, name: str, field: SequenceField) -> None:
        self._name = name
        self._field = field
        self._dtype = plan_dtype(name, field.dtype)
        self._is_scaled = bool(np.any(np.asarray(field.scale) != 1.0) or np.any(np.asarray(field.shift) != 0.0))

    def __call__(self, decoded: Decoded, context: Context) -> Outputs:
        sequence = time_first(decoded.array)
        if self._field.columns is not None:
            sequence = select_columns(sequence, decoded.info.get("columns"), self._field.columns)
        if self._field.channels is not None:
            sequence = select_channels(sequence, self._field.channels)
        if self._is_scaled:
            sequence = scale_channels(sequence, self._field.scale, self._field.shift)
        return {self._name: cast(sequence, self._dtype, is_computed=self._is_scaled)}


def time_first(array: Array) -> Array:
    """(T,) or (T, C) -> (T, C).

    Raises:
        SampleError: other axes, other than numbers, or nothing in it.
    """
    if array.ndim not in (1, 2) or array.dtype.kind not in "biuf":
        raise SampleError("check", f"{array.dtype} of shape {array.shape} is no sequence; wanted (T) or (T, C)")
    if array.size == 0:
        raise SampleError("check", "the sequence is empty")
    return array[:, None] if array.ndim == 1 else array


def select_columns(sequence: Array, names: list[str] | None, wanted: list[str]) -> Array:
    """The channels called `wanted`, in that order."""
    if names is None:
        raise SampleError("transform", f"columns {wanted} are wanted, but the file names none; use channels")
    missing = [name for name in wanted if name not in names]
    if missing:
        raise SampleError("transform", f"there is no column {missing}; the file has {names}")
    if names == wanted:
        return sequence
    return sequence[:, [names.index(name) for name in wanted]]


def select_channels(sequence: Array, wanted: list[int]) -> Array:
    """The channels at these positions, in that order."""
    if max(wanted, default=0) >= sequence.shape[1]:
        raise SampleError("transform", f"channels {wanted} are wanted, the sequence has {sequence.shape[1]}")
    return sequence[:, wanted]


def scale_channels(sequence: Array, scale: float | list[float], shift: float | list[float]) -> Array:
    """x * scale + shift as float32, each one number or one a channel; computed in float64."""
    for what, numbers in (("scale", scale), ("shift", shift)):
        if isinstance(numbers, list) and len(numbers) not in (1, sequence.shape[1]):
            raise SampleError("transform", f"{what} has {len(numbers)} values for {sequence.shape[1]} channels")
    scaled: Array = sequence * np.asarray(scale, np.float64) + np.asarray(shift, np.float64)
    return cast(scaled, np.dtype(np.float32))
