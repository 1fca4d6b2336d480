"""Files mapped read-only without keeping a descriptor open: a store of 10,000 shards needs no 10,000 of them.

Python's own mmap keeps a copy of the descriptor for the life of the map, and most systems allow 1,024.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from flatout.types import Array

CAN_PLACE = sys.platform in ("linux", "darwin")
"""Whether files can be mapped at addresses of our choice."""

_NONE, _READ = 0, 1
_SHARED, _PRIVATE, _FIXED = 1, 2, 16
_NORESERVE, _ANONYMOUS = (0x40, 0x1000) if sys.platform == "darwin" else (0x4000, 0x20)
_FAILED = ctypes.c_void_p(-1).value


def map_file(path: Path, size: int) -> Array:
    """The first `size` bytes of a file as a read-only array; the caller has checked that there are so many.

    Raises:
        OSError: it cannot be opened or mapped.
    """
    with open(path, "rb") as file:
        if not CAN_PLACE:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        address = _mmap(None, size, _READ, _SHARED, file.fileno(), 0)
    return as_array(address, size)


def reserve(size: int) -> int:
    """Addresses for `size` bytes that nothing stands at yet."""
    return _mmap(None, size, _NONE, _PRIVATE | _ANONYMOUS | _NORESERVE, -1, 0)


def place(address: int, path: Path, offset: int, size: int) -> None:
    """Map a stretch of a file at an address inside a reserved range; both start on a page."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _mmap(address, size, _READ, _SHARED | _FIXED, descriptor, offset)
    finally:
        os.close(descriptor)


def as_array(address: int, size: int) -> Array:
    """The bytes at an address; the map goes when the array and every view of it are gone."""
    owner = (ctypes.c_char * size).from_address(address)
    weakref.finalize(owner, _libc().munmap, address, size).atexit = False
    array: Array = np.frombuffer(memoryview(owner), np.uint8)
    array.flags.writeable = False
    return array


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def _mmap(address: int | None, size: int, protection: int, flags: int, descriptor: int, offset: int) -> int:
    found = _libc().mmap(address, size, protection, flags, descriptor, offset)
    if found is None or found == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"mapping {size:,} bytes: {os.strerror(number)}")
    return int(found)
