"""Column: the samples of one field on end, copied into aligned memory while the CPU's caches still have them.

A shard that is kept sample by sample is fetched from memory twice: to be laid into pieces that a disk takes,
and to be hashed. So it is laid into them at once, and written as it lies. What a sample was made in is free
again, and the next one is made in memory that is in the caches.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from flatout.types import Array

SLAB_BYTES = 1 << 20
"""Of memory that is handed out and, in the end, written by one call: a cache holds it while it is hashed."""
HUGE_BYTES = 2 << 20
SLABS_TOGETHER = 8
"""Slabs that are asked for at once."""
SMALL_BYTES = 4096
"""Smaller arrays are collected first: to copy one takes longer than to keep it."""
TOGETHER_BYTES = 1 << 16
"""So much of them is copied at once."""
LARGE_BYTES = 4 << 20
"""Arrays from here on stay as they are: no cache holds them, and two copies would be a second large sample."""


class Slabs:
    """Memory that begins at a page, used again by one shard after another.

    Threads may share it: one fills slabs while another gives back those that are written.
    """

    def __init__(self) -> None:
        self._free: list[Array] = []

    def take(self) -> Array:
        try:
            return self._free.pop()
        except IndexError:
            some = _mapped(SLABS_TOGETHER * SLAB_BYTES).reshape(SLABS_TOGETHER, SLAB_BYTES)
            self.give(list(some[1:]))
            first: Array = some[0]
            return first

    def give(self, slabs: list[Array]) -> None:
        self._free += slabs


def _mapped(num_bytes: int) -> Array:
    """Fresh memory, in huge pages where the system has them: to hash it takes a fifth less time so."""
    memory = mmap.mmap(-1, num_bytes + HUGE_BYTES)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    found = np.frombuffer(memory, np.uint8)
    start = -found.__array_interface__["data"][0] % HUGE_BYTES
    return found[start : start + num_bytes]


class Column:
    """Bytes of arrays of one dtype, one behind the other."""

    def __init__(self, slabs: Slabs) -> None:
        self.num_bytes = 0
        self._slabs = slabs
        self._taken: list[Array] = []
        self._kept: list[Array] = []
        """Whole slabs and large arrays, before what is in the last slab."""
        self._last: Array | None = None
        self._last_address = self._filled = 0
        self._waiting: list[Array] = []
        self._waiting_bytes = 0

    def append(self, array: Array) -> None:
        """Keep a C-contiguous array. A small one is read later: nobody may change it."""
        num_bytes = array.nbytes
        self.num_bytes += num_bytes
        if num_bytes < SMALL_BYTES:
            self._waiting.append(array)
            self._waiting_bytes += num_bytes
            if self._waiting_bytes >= TOGETHER_BYTES:
                self._join()
            return
        self._join()
        if num_bytes >= LARGE_BYTES:
            self._close()
            self._kept.append(array.reshape(-1).view(np.uint8))
        elif not self._has_made_room(array):
            self._copy(array.reshape(-1).view(np.uint8))

    def room(self, num_bytes: int) -> Array | None:
        """Memory at the end, uint8; None where a copy is as good, or no slab has so much.

        Whoever makes an array there appends it next, or never.
        """
        if num_bytes < SMALL_BYTES:
            return None
        self._join()
        slab, at = self._last if self._last is not None else self._open(), self._filled
        return slab[at : at + num_bytes] if at + num_bytes <= len(slab) else None

    def buffers(self) -> Iterator[Array]:
        """All bytes in order, uint8; all but large arrays begin at a page."""
        self._join()
        yield from self._kept
        if self._last is not None and self._filled:
            yield self._last[: self._filled]

    def clear(self) -> None:
        """Forget the bytes; others may have their memory."""
        taken, self._taken = self._taken, []
        self._kept, self._last, self._filled = [], None, 0
        self._slabs.give(taken)

    def _has_made_room(self, array: Array) -> bool:
        """Whether an array stands in the room that was given; it is then one of the bytes."""
        at = array.__array_interface__["data"][0] - self._last_address
        if self._last is None or not 0 <= at < len(self._last):
            return False
        if at != self._filled:
            raise AssertionError("an array was made at the end of a column, and others were appended first")
        self._filled += array.nbytes
        if self._filled == len(self._last):
            self._close()
        return True

    def _join(self) -> None:
        """Copy what waits."""
        if self._waiting:
            waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
            self._copy(np.concatenate([array.reshape(-1) for array in waiting]).view(np.uint8))

    def _copy(self, rest: Array) -> None:
        while rest.size:
            slab = self._last if self._last is not None else self._open()
            some = rest[: len(slab) - self._filled]
            slab[self._filled : self._filled + some.size] = some
            self._filled, rest = self._filled + some.size, rest[some.size :]
            if self._filled == len(slab):
                self._close()

    def _open(self) -> Array:
        self._last = slab = self._slabs.take()
        self._last_address = slab.__array_interface__["data"][0]
        self._taken.append(slab)
        return slab

    def _close(self) -> None:
        """What follows goes elsewhere."""
        if self._last is not None:
            self._kept.append(self._last[: self._filled])
        self._last, self._filled = None, 0
