"""Announcing: the system is asked to fetch bytes of a file that are wanted soon, and does so meanwhile."""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from typing import Any

from flatout.store.mapping import CAN_PLACE
from flatout.types import Array

ANNOUNCED_BYTES = 512 << 10
"""Announced at once: of more, Linux fetches only as much as the device takes in one request."""
RANDOM, WILL_NEED = 1, 3
"""What can be told of mapped memory: that its neighbours are not wanted, that it is wanted soon."""


def announce_bytes(descriptor: int, start: int, stop: int) -> None:
    """Bytes of an open file, where the system can be asked; returns at once.

    Raises:
        OSError: it does not take the descriptor.
    """
    if hasattr(os, "posix_fadvise"):
        for at in range(start, stop, ANNOUNCED_BYTES):
            os.posix_fadvise(descriptor, at, min(ANNOUNCED_BYTES, stop - at), os.POSIX_FADV_WILLNEED)


def announce_mapped(mapped: Array) -> None:
    """A stretch of a mapped file; returns at once."""
    if CAN_PLACE and mapped.size:
        start = mapped.ctypes.data - mapped.ctypes.data % mmap.PAGESIZE
        stop = mapped.ctypes.data + mapped.nbytes
        for at in range(start, stop, ANNOUNCED_BYTES):
            advise(at, min(ANNOUNCED_BYTES, stop - at), WILL_NEED)


def advise(address: int, size: int, what: int) -> None:
    """Tell the system how mapped memory will be used, from a page on. A refusal changes nothing."""
    _madvise()(address, size, what)


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None, use_errno=True).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
