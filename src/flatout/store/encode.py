"""Encodings: a sample's array -> fewer bytes on disk, and back. Casts, and linear quantisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from flatout.errors import SampleError
from flatout.types import Array, FieldSpec

QUANTISED = {"uint8": (0, 255), "int16": (-32768, 32767)}
"""Encodings that need a scale and an offset, with the integers they span."""
MAX_QUANTISED = 2.0**126
"""Largest value that is quantised: restored in float32, half a step more must not become an infinity."""


def encode(spec: FieldSpec, array: Array) -> tuple[Array, tuple[float, float] | None]:
    """The stored array, and (scale, offset) for a quantised field.

    Raises:
        SampleError: a value does not fit (float16 ends at 65504; outside a fixed `range`).
    """
    if spec.encoding == "none":
        return array, None
    if spec.encoding == "float16":
        return _to_float16(spec, array), None
    if spec.encoding == "bfloat16":
        return _to_bfloat16(spec, array), None
    return _quantise(spec, array)


def restore(spec: FieldSpec, stored: Array, scale: tuple[float, float] | None) -> Array:
    """The array as the loader delivers it: dtype `spec.dtype`."""
    dtype = np.dtype(spec.dtype)
    if spec.encoding == "none":
        return stored
    if spec.encoding == "float16":
        return stored.astype(dtype)
    if spec.encoding == "bfloat16":
        return from_bfloat16_bits(stored).astype(dtype)
    if scale is None:
        raise ValueError(f"field '{spec.name}' is quantised but has no scale")
    # float32 arithmetic on purpose: it is what the device does after transfer.
    return (stored.astype(np.float32) * np.float32(scale[0]) + np.float32(scale[1])).astype(dtype)


def largest_error(spec: FieldSpec, array: Array, stored: Array, scale: tuple[float, float] | None) -> float:
    """Largest absolute difference that the encoding makes in this sample."""
    if spec.encoding == "none" or not array.size:
        return 0.0
    with np.errstate(invalid="ignore"):
        error = np.abs(restore(spec, stored, scale).astype(np.float64) - array)
    return float(np.nanmax(error, initial=0.0))


def to_bfloat16_bits(array: Array) -> Array:
    """float32 -> the upper 16 bits as uint16, rounded to nearest even; NaN stays NaN."""
    with np.errstate(over="ignore"):
        bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16).reshape(np.shape(array))


def from_bfloat16_bits(bits: Array) -> Array:
    """uint16 -> float32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _to_float16(spec: FieldSpec, array: Array) -> Array:
    with np.errstate(over="ignore"):
        stored = array.astype(np.float16)
    _check_fits(spec, array, np.isinf(stored), "float16 (largest 65504); use encoding bfloat16 or int16")
    return stored


def _to_bfloat16(spec: FieldSpec, array: Array) -> Array:
    bits = to_bfloat16_bits(array)
    _check_fits(spec, array, (bits & 0x7FFF) == 0x7F80, "bfloat16 (largest 3.39e38); leave the encoding out")
    return bits


def _check_fits(spec: FieldSpec, array: Array, became_infinite: Array, what: str) -> None:
    """An infinity may stay one; a number may not become one."""
    lost = became_infinite & np.isfinite(array)
    if lost.any():
        peak = np.abs(array[lost]).max()
        raise SampleError(
            "encode", f"field '{spec.name}': value {peak:g} does not fit {what}, or normalise the field"
        )


def _quantise(spec: FieldSpec, array: Array) -> tuple[Array, tuple[float, float]]:
    if not np.isfinite(array).all():
        raise SampleError("encode", f"field '{spec.name}': {spec.encoding} cannot hold NaN or infinity")
    low_code, high_code = QUANTISED[spec.encoding]
    low, high = spec.range or _own_range(array)
    if array.size and (array.min() < low or array.max() > high):
        raise SampleError(
            "encode",
            f"field '{spec.name}': values {array.min():g}..{array.max():g} leave its range {low:g}..{high:g}",
        )
    if max(abs(low), abs(high)) > MAX_QUANTISED:
        raise SampleError("encode", f"field '{spec.name}': {low:g}..{high:g} is too wide for float32 steps")
    scale = float(np.float32((high - low) / (high_code - low_code)))
    if scale == 0.0:  # one value, or a range below float32's steps: kept as the offset, whatever its size
        return np.zeros(array.shape, _code_dtype(spec)), (1.0, float(np.float32(low)))
    offset = float(np.float32(low - low_code * scale))
    codes = np.rint((array.astype(np.float64) - offset) / scale)
    return codes.clip(low_code, high_code).astype(_code_dtype(spec)), (scale, offset)


def _own_range(array: Array) -> tuple[float, float]:
    return (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)


def _code_dtype(spec: FieldSpec) -> np.dtype[Any]:
    return np.dtype(spec.encoding)
