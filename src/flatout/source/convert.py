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
        value = value.detach().cpu().numpy()
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
