"""Buffers that are used again, but only when nobody holds them any more.

A fresh allocation costs 3-4 times the copy in page faults. So a batch's tensor looks at a view of a buffer;
when the last tensor, NumPy view, DLPack capsule or autograd graph that looks at it is gone, the view dies and
its finaliser gives the buffer back. The one that came back last is used first: it is still in the CPU's cache,
which makes batches of 1 MB a fifth faster than taking turns.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flatout.types import Array

WINDOW = 256
"""Takes after which half of the buffers that lay idle all the while go back to the system: a consumer may
have held a whole epoch once, which is no reason to keep its memory for good."""
SPARE, SPARE_BYTES = 4, 40 << 20
"""Idle buffers that are always kept, as many as fit: they are wanted when something held a producer up, and to
allocate 10 MB takes 2 ms just then."""

HUGE_BYTES = 4 << 20
"""From this size on NumPy asks for huge pages. Units of producers are a little smaller, and a twelfth faster
there."""


class _Loan(weakref.ref[Array]):
    """A view that somebody looks at, and the buffer behind it; weakref.finalize takes twice as long."""

    __slots__ = ("buffer", "home")
    __hash__ = object.__hash__  # a reference has the hash of its array, which has none
    __eq__ = object.__eq__
    buffer: Array
    home: weakref.ref[FreeBuffers]
    """Weak: a tensor that outlives its loader must not hold on to all the idle buffers."""


class FreeBuffers:
    """Buffers that nobody looks at. Threads and finalisers may share it: each step on the list is one."""

    def __init__(self) -> None:
        self._free: list[Array] = []
        self._lent: set[_Loan] = set()
        self._home = weakref.ref(self)
        self._num_taken = 0
        self._num_idle = 0

    def take(self) -> Array | None:
        """One of them, if there is one; its contents are whatever was there."""
        self._shrink()
        try:
            return self._free.pop()
        except IndexError:
            return None

    def put(self, buffer: Array) -> None:
        """One more that nobody looks at."""
        self._free.append(buffer)

    def lend(self, buffer: Array, view: Array) -> torch.Tensor:
        """A view of a buffer as a tensor; the buffer comes back when no one holds it."""
        self._await(view, buffer)
        return torch.from_numpy(view)

    def lend_rows(self, buffer: Array, sizes: Sequence[int]) -> list[torch.Tensor]:
        """So many rows each as tensors; the buffer comes back when no one holds any of them."""
        # NumPy gives a slice the owner of the memory as its base, past all views: this one is an owner to it.
        rows = np.frombuffer(buffer.data, buffer.dtype) if buffer.size else buffer[:0].reshape(-1)
        self._await(rows, buffer)
        return cut_rows(rows.reshape(buffer.shape), sizes)

    def _await(self, view: Array, buffer: Array) -> None:
        loan = _Loan(view, _give_back)
        loan.buffer, loan.home = buffer, self._home
        self._lent.add(loan)

    def end(self, loan: _Loan) -> None:
        """Nobody looks at a view any more."""
        self._lent.discard(loan)
        self._free.append(loan.buffer)

    def _shrink(self) -> None:
        """Threads may come between these lines: then a buffer more or less is kept, which does no harm."""
        self._num_idle = min(self._num_idle, len(self._free))
        self._num_taken += 1
        if self._num_taken < WINDOW:
            return
        spare = min(SPARE, SPARE_BYTES // max(1, max((one.nbytes for one in self._free), default=0)))
        del self._free[: max(0, self._num_idle - spare) // 2]
        self._num_taken, self._num_idle = 0, len(self._free)


def _give_back(loan: _Loan) -> None:
    """Called when a view dies; its pool may be gone before it, and then its buffer goes, too."""
    home = loan.home()
    if home is not None:
        home.end(loan)


def cut_rows(rows: Array, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Stretches of so many rows each. A tensor has the memory of its own stretch alone: torch.save writes all
    that a tensor's storage has."""
    cut, start = [], 0
    for size in sizes:
        cut.append(torch.from_numpy(rows[start : start + size]))
        start += size
    return cut


class BufferPool:
    """Buffers for rows of one shape and dtype."""

    def __init__(self, row: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._row = row
        self._dtype = dtype
        self._free = FreeBuffers()

    @property
    def row_bytes(self) -> int:
        return self._dtype.itemsize * math.prod(self._row)

    def take(self, num_rows: int) -> Array:
        """A buffer of at least so many rows that nobody looks at; its contents are whatever was there."""
        buffer = self._free.take()
        if buffer is not None and len(buffer) >= num_rows:
            return buffer
        return _allocated((num_rows, *self._row), self._dtype)

    def give_back(self, buffer: Array) -> None:
        """A buffer that was taken and not handed out."""
        self._free.put(buffer)

    def hand_out(self, buffer: Array, sizes: Sequence[int]) -> list[torch.Tensor]:
        """Its rows as tensors of so many rows each; the buffer comes back when no one holds any of them."""
        return self._free.lend_rows(buffer, sizes)


def _allocated(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    num_bytes = math.prod(shape) * dtype.itemsize
    if not HUGE_BYTES // 2 <= num_bytes < HUGE_BYTES:
        return np.empty(shape, dtype)
    return np.empty(HUGE_BYTES, np.uint8)[:num_bytes].view(dtype).reshape(shape)


class PinnedPool(BufferPool):
    """Page-locked buffers for copies to CUDA. torch's own allocator recycles them: only it knows of copies
    under way, and it knows them by the tensor that it made."""

    def take(self, num_rows: int) -> Array:
        return pinned_array((num_rows, *self._row), self._dtype)

    def give_back(self, buffer: Array) -> None:
        """Dropping it is giving it back."""

    def hand_out(self, buffer: Array, sizes: Sequence[int]) -> list[torch.Tensor]:
        return list(torch.split(pinned_tensor(buffer)[: sum(sizes)], list(sizes)))


def pinned_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Page-locked memory from torch; its contents are whatever was there."""
    kind = torch.from_numpy(np.empty(0, dtype)).dtype
    array: Array = torch.empty(shape, dtype=kind, pin_memory=True).numpy()
    return array


def pinned_tensor(array: Array) -> torch.Tensor:
    """The tensor that torch made for such an array."""
    tensor = array.base
    assert isinstance(tensor, torch.Tensor)
    return tensor
