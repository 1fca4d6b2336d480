"""Anything a transform or dataset returns for a field -> a NumPy array, without importing torch or Pillow."""

from __future__ import annotations

from typing import Any

import numpy as np

from flatout.errors import SampleError
from flatout.types import Array


class TextBytes(np.ndarray[Any, Any]):
    """UTF-8 bytes that were a string: stored as text, so that lengths may differ."""


def to_array(name: str, value: Any) -> Array:
    """Arrays, tensors, PIL images, numbers, strings and nested lists of numbers.

    A tensor of a float type that NumPy lacks (bfloat16, float8) is float32, which holds its values exactly.
    A float is float64, as torch's default collate has it: a time of day in float32 is off by a minute.

    Raises:
        SampleError: the value is none of these, or an array of objects.
    """
    if isinstance(value, str):
        return np.frombuffer(value.encode(), np.uint8).view(TextBytes)
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    if isinstance(value, bool | np.bool_):
        return np.asarray(value)
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # a torch tensor
        value = _numpy_of(name, value.detach().cpu())
    try:
        array = np.array(value)  # a copy: samples wait for their shard, the next may come in the same memory
    except (ValueError, TypeError) as error:
        raise SampleError("transform", f"field '{name}': {error}") from error
    if array.dtype.kind not in "biufc":
        raise SampleError(
            "transform",
            f"field '{name}' is {type(value).__name__} of dtype {array.dtype}; wanted numbers, an array, "
            "a tensor, an image or a string",
        )
    return array


def _numpy_of(name: str, tensor: Any) -> Array:
    """The values of a tensor on the CPU."""
    try:
        return tensor.numpy()  # type: ignore[no-any-return]
    except (TypeError, RuntimeError) as error:
        if isinstance(error, TypeError) and not tensor.is_sparse and tensor.is_floating_point():
            return tensor.float().numpy()  # type: ignore[no-any-return]
        raise SampleError(
            "transform", f"field '{name}': a tensor of {tensor.dtype} has no array: {error}; return a plain one"
        ) from error
