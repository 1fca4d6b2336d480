"""Leaves of an item: one value in, the arrays that hold it out, and back to a value of the very same type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flatout.source.pil_image import image_from_arrays, image_to_arrays, is_image
from flatout.source.plain import from_text, is_plain, to_text
from flatout.types import Array

NUMBERS = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
"""Python's numbers and the dtype that holds them."""
TENSOR_KINDS = {
    torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bfloat16,
}  # fmt: skip


class UnstorableError(Exception):
    """A value that no arrays can give back; the message completes "field X ..."."""


@dataclass(frozen=True)
class Part:
    """One field of a leaf."""

    dtype: str
    suffix: str = ""
    kind: str = "array"
    encoding: str = "none"
    is_ragged: bool = False


TEXT = Part("uint8", kind="text", is_ragged=True)
BYTES = Part("uint8", is_ragged=True)
BFLOAT16 = Part("float32", encoding="bfloat16")


@dataclass(frozen=True)
class Leaf:
    """A value as arrays, which are private copies, and what tells its type."""

    kind: str
    parts: Sequence[Part]
    arrays: Sequence[Array]
    details: tuple[Any, ...] = ()


def leaf_of(value: Any) -> Leaf | None:
    """The value as arrays; None if it is a container, or nothing that can be stored.

    Raises:
        UnstorableError: it is of a kind that could be, but not this one.
    """
    kind = type(value)
    if kind is torch.Tensor:
        return _tensor(value)
    if kind is np.ndarray or kind is np.memmap:
        array = _storable(value)
        return Leaf("array", [Part(array.dtype.name)], [array], (value.dtype.str, array.ndim))
    if kind in NUMBERS and not _is_big(value):
        return Leaf(kind.__name__, [Part(NUMBERS[kind])], [np.array(value, NUMBERS[kind])])
    if kind is str or kind is np.str_:
        return Leaf(kind.__name__, [TEXT], [_bytes(value.encode("utf-8", "surrogatepass"))])
    if kind is bytes:
        return Leaf("bytes", [BYTES], [_bytes(value)])
    if isinstance(value, np.generic):
        array = _storable(np.asarray(value))
        return Leaf("scalar", [Part(array.dtype.name)], [array], (value.dtype.str,))
    if is_image(value):
        return _image(value)
    return _numbers(value) if kind in (list, tuple, int) else None


def value_of(kind: str, details: Sequence[Any]) -> Callable[[Sequence[Array]], Any]:
    """What makes the value of a leaf from its arrays, which become the value's own."""
    if kind == "tensor":
        return _bfloat16 if details[0] == "bfloat16" else lambda arrays: torch.from_numpy(arrays[0])
    if kind in ("array", "scalar"):
        dtype = np.dtype(details[0])
        if kind == "scalar":
            return lambda arrays: arrays[0].astype(dtype)[()]
        return lambda arrays: arrays[0].astype(dtype, copy=False)
    if kind == "image":
        return lambda arrays: image_from_arrays(details[0], arrays[0], arrays[1])
    if kind == "numbers":
        container = tuple if details[0] == "tuple" else list
        return lambda arrays: container(arrays[0].tolist())
    return _SIMPLE[kind]


def _tensor(value: torch.Tensor) -> Leaf:
    if value.device.type != "cpu":
        raise UnstorableError(f"is a tensor on {value.device}; cache it on the CPU and move it afterwards")
    if value.requires_grad:
        raise UnstorableError("is a tensor that requires grad, which would be lost; detach it")
    if value.layout is not torch.strided or value.dtype not in TENSOR_KINDS:
        raise UnstorableError(f"is a tensor of {value.dtype} and layout {value.layout}")
    if value.dtype is torch.bfloat16:
        bits = value.contiguous().view(torch.int16).numpy().view(np.uint16)
        return Leaf("tensor", [BFLOAT16], [bits.copy()], ("bfloat16", bits.ndim))
    array = np.array(value.resolve_conj().resolve_neg().numpy(), order="C")
    return Leaf("tensor", [Part(array.dtype.name)], [array], (array.dtype.name, array.ndim))


def _bfloat16(arrays: Sequence[Array]) -> torch.Tensor:
    return torch.from_numpy(arrays[0].view(np.int16)).view(torch.bfloat16)


def _storable(value: Array) -> Array:
    """A native copy of an array of numbers."""
    if value.dtype.kind not in "biufc" or value.dtype.itemsize > (16 if value.dtype.kind == "c" else 8):
        raise UnstorableError(
            f"is an array of dtype {value.dtype}; booleans and numbers of up to 64 bits are kept"
        )
    return np.array(value, value.dtype.newbyteorder("="), order="C", subok=False)


def _image(value: Any) -> Leaf:
    try:
        pixels, rest = image_to_arrays(value)
    except ValueError as error:
        raise UnstorableError(f"is {error}") from error
    extra = Part("uint8", suffix="_extra", kind="text", is_ragged=True)
    return Leaf("image", [Part(pixels.dtype.name), extra], [_storable(pixels), rest], (value.mode,))


def _numbers(value: Any) -> Leaf | None:
    """Numbers of one type are one array of any length; other lists of plain values, whose lengths differ
    from item to item as a rule, are text; other tuples are containers.
    """
    kinds = {type(item) for item in value} if type(value) is not int else set()
    if len(kinds) == 1 and (kind := kinds.pop()) in NUMBERS and not any(map(_is_big, value)):
        details = type(value).__name__, kind.__name__
        return Leaf("numbers", [Part(NUMBERS[kind])], [np.array(value, NUMBERS[kind])], details)
    if type(value) is not tuple and is_plain(value):
        return Leaf("plain", [TEXT], [_bytes(to_text(value).encode())])
    return None


def _is_big(value: Any) -> bool:
    """An integer that 64 bits do not hold."""
    return type(value) is int and not -(1 << 63) <= value < 1 << 63


def _bytes(value: bytes) -> Array:
    return np.frombuffer(value, np.uint8)


def _text(arrays: Sequence[Array]) -> str:
    return arrays[0].tobytes().decode("utf-8", "surrogatepass")


_SIMPLE: dict[str, Callable[[Sequence[Array]], Any]] = {
    **{kind.__name__: lambda arrays: arrays[0].item() for kind in NUMBERS},
    "str": _text,
    "str_": lambda arrays: np.str_(_text(arrays)),
    "bytes": lambda arrays: arrays[0].tobytes(),
    "plain": lambda arrays: from_text(_text(arrays)),
}
