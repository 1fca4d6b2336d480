"""Buffers that are used again, but only when nobody holds them any more.

A fresh allocation costs 3-4 times the copy in page faults. So a batch's tensor looks at a view of a buffer;
when the last tensor, NumPy view, DLPack capsule or autograd graph that looks at it is gone, the view dies and
its finaliser gives the buffer back.
"""

from __future__ import annotations

import math
import weakref
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import torch

from flatout.types import Array

WINDOW = 256
"""Takes after which half of the buffers that lay idle all the while go back to the system: a consumer may
have held a whole epoch once, which is no reason to keep its memory for good."""


class FreeBuffers:
    """Buffers that nobody looks at. Threads and finalisers may share it."""

    def __init__(self) -> None:
        self._free: SimpleQueue[Array] = SimpleQueue()
        self._num_taken = 0
        self._num_idle = 0

    def take(self) -> Array | None:
        """One of them, if there is one; its contents are whatever was there."""
        self._shrink()
        try:
            return self._free.get_nowait()
        except Empty:
            return None

    def lend(self, buffer: Array, view: Array) -> torch.Tensor:
        """A view of a buffer as a tensor; the buffer comes back when no one holds it."""
        weakref.finalize(view, self._free.put, buffer).atexit = False
        return torch.from_numpy(view)

    def _shrink(self) -> None:
        """Threads may come between these lines: then a buffer more or less is kept, which does no harm."""
        self._num_idle = min(self._num_idle, self._free.qsize())
        self._num_taken += 1
        if self._num_taken < WINDOW:
            return
        for _ in range(self._num_idle // 2):
            with suppress(Empty):
                self._free.get_nowait()
        self._num_taken, self._num_idle = 0, self._free.qsize()


class BufferPool:
    """Buffers of one shape and dtype."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._shape = shape
        self._dtype = dtype
        self._free = FreeBuffers()

    @property
    def row_bytes(self) -> int:
        return self._dtype.itemsize * math.prod(self._shape[1:])

    def take(self) -> Array:
        """A buffer that nobody looks at; its contents are whatever was there."""
        buffer = self._free.take()
        return np.empty(self._shape, self._dtype) if buffer is None else buffer

    def hand_out(self, buffer: Array, count: int) -> torch.Tensor:
        """The first `count` rows as a tensor; the buffer comes back when no one holds them."""
        return self._free.lend(buffer, buffer[:count])


class PinnedPool(BufferPool):
    """Page-locked buffers for copies to CUDA. torch's own allocator recycles them: only it knows of copies
    under way."""

    def take(self) -> Array:
        dtype = torch.from_numpy(np.empty(0, self._dtype)).dtype
        buffer: Array = torch.empty(self._shape, dtype=dtype, pin_memory=True).numpy()
        return buffer

    def hand_out(self, buffer: Array, count: int) -> torch.Tensor:
        return torch.from_numpy(buffer)[:count]
