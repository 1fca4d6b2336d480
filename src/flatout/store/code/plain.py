"""Bytes that stand for a plain value (number, text, array, tensor), equal in every process."""

from __future__ import annotations

import os
import struct
import sys
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from blake3 import blake3


def encode_plain(value: object) -> bytes | None:
    """A plain value in, bytes that name its type and content out; None: it is not a plain value."""
    if value is None or value is ... or isinstance(value, bool):
        return f"{value}".encode()
    if type(value) is int:
        return b"int" + hex(value).encode()
    if type(value) is float:
        return b"float" + (b"nan" if value != value else struct.pack("<d", value))
    if type(value) is complex:
        return b"complex" + struct.pack("<dd", value.real, value.imag)
    if type(value) is str:
        return b"str" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes | bytearray):
        return b"bytes" + bytes(value)
    if isinstance(value, PurePath):
        return b"path" + os.fsencode(value.as_posix())
    if isinstance(value, Enum):
        return f"enum {type(value).__qualname__}.{value.name}".encode()
    return _encode_array(value)


def _encode_array(value: object) -> bytes | None:
    if type(value) is np.memmap:
        return _encode_mapped(value)
    # Exact types: a masked array holds more than its values.
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return _header(value.dtype, value.shape) + _digest(np.ascontiguousarray(value))
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return _header(value.dtype, ()) + _digest(np.asarray(value))
    if isinstance(value, np.dtype):
        return _header(value, ())
    return _encode_tensor(value)


def _encode_mapped(value: np.memmap[Any, Any]) -> bytes:
    """A mapped file by its size and time: reading 100 GB to see that nothing changed helps nobody."""
    head = _header(value.dtype, value.shape)
    path = getattr(value, "filename", None)
    if path is None or not Path(path).is_file():
        return head + _digest(np.ascontiguousarray(value))
    stat = Path(path).stat()
    return head + f"mapped {stat.st_size} {stat.st_mtime_ns} {value.offset}".encode()


def _encode_tensor(value: object) -> bytes | None:
    """A tensor, if torch is loaded at all: whoever holds one has imported it."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return _header(value.dtype, tuple(value.shape)) + _digest(plain.numpy())


def _header(dtype: Any, shape: tuple[int, ...]) -> bytes:
    name = repr(dtype.descr) if isinstance(dtype, np.dtype) else str(dtype)
    return f"array {name} {shape} ".encode()


def _digest(array: np.ndarray[Any, Any]) -> bytes:
    if not array.dtype.itemsize:
        return b""  # an array of empty strings cannot be seen as bytes
    return blake3(array.reshape(-1).view(np.uint8).data).digest()
