"""Columns: the samples of one field on end, until they are written.

A shard that is kept sample by sample is fetched from memory twice: to be laid into pieces that a disk takes,
and to be hashed. Whoever makes shard after shard has slabs: there a sample is laid into aligned memory while
the CPU's caches have it, and written as it lies. What it was made in is free again, and the next one is made
in memory that is in the caches.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from contextlib import suppress

import numpy as np

from flatout.store.gather import joined
from flatout.types import Array

SLAB_BYTES = 2 << 20
"""A huge page: XXH3 hashes 30 GB/s of memory that no cache has there, and 24 in pages of 4 KB."""
SMALL_BYTES = 4096
"""Smaller arrays are collected first: to copy one takes longer than to keep it."""
TOGETHER_BYTES = 1 << 16
"""So much of them is joined at once."""
ROOM_BYTES = 128 << 10
"""Blocks below this are collected: each of 256 small fields would have a slab for a few of its bytes."""
LARGE_BYTES = 4 << 20
"""Arrays from here on stay as they are: no cache has them, and two copies would be a second large sample."""


class Slabs:
    """Aligned memory that is used by one shard after another.

    Threads may share it: one fills slabs while another gives back those that are written. If they come between
    these lines a slab more or less is kept, which does no harm.
    """

    def __init__(self) -> None:
        self._free: list[Array] = []
        self._num_idle = 0
        """How many nobody has wanted since some were given back last."""

    def take(self) -> Array:
        try:
            slab = self._free.pop()
        except IndexError:
            slab = _mapped()
        self._num_idle = min(self._num_idle, len(self._free))
        return slab

    def give(self, slabs: Iterable[Array]) -> None:
        """Those of a whole shard. What lay idle since the one before goes back to the system."""
        del self._free[: self._num_idle]
        self._free += slabs
        self._num_idle = len(self._free)


def _mapped() -> Array:
    """Fresh memory, in a huge page where the system has them."""
    flags = {}
    if hasattr(mmap, "MAP_ANONYMOUS"):  # private: memory that is shared has pages of its own kind
        flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
    try:
        memory = mmap.mmap(-1, 2 * SLAB_BYTES, **flags)
    except OSError as error:
        raise MemoryError(f"no memory for {SLAB_BYTES:,} bytes of a shard: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    found = np.frombuffer(memory, np.uint8)
    start = -_address(found) % SLAB_BYTES  # what is before and behind is never touched
    slab: Array = found[start : start + SLAB_BYTES]
    return slab


class Column:
    """Arrays of one dtype, as they are; nobody may change them."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._kept: list[Array] = []

    def append(self, array: Array) -> None:
        """Keep a C-contiguous array."""
        self.num_bytes += array.nbytes
        self._kept.append(array)

    def collect(self, array: Array) -> None:
        """Keep an array that may be joined with others first; it takes no slab."""
        self.append(array)

    def room(self, num_bytes: int, most: int = 1) -> Array | None:
        """Memory at the end, uint8, for arrays of so many bytes: for `most`, or as many as it holds, or none.

        Whoever makes arrays there appends them next, or never. None: a copy is as good.
        """
        return None

    def buffers(self) -> Iterator[Array]:
        """All bytes in order; a buffer holds until the next one is asked for."""
        return joined(self._kept)

    def clear(self) -> list[Array]:
        """Forget the bytes; the slabs that they were in."""
        self.num_bytes, self._kept = 0, []
        return []


class SlabColumn(Column):
    """The bytes of such arrays in slabs; small and large ones beside them."""

    def __init__(self, slabs: Slabs) -> None:
        super().__init__()
        self._slabs = slabs
        self._taken: list[Array] = []
        self._last: Array | None = None
        """The slab that is filled now, behind all that is kept."""
        self._last_address = self._filled = 0
        self._waiting: list[Array] = []
        """Small arrays behind that, not copied yet."""
        self._waiting_bytes = 0

    def append(self, array: Array) -> None:
        """Keep a C-contiguous array; small and large ones are read later."""
        num_bytes = array.nbytes
        if num_bytes < SMALL_BYTES:
            self.collect(array)
            return
        self.num_bytes += num_bytes
        self._join()
        if num_bytes >= LARGE_BYTES:
            self._close()
            self._kept.append(_bytes_of(array))
        elif not self._has_made_room(array):
            self._copy(_bytes_of(array))

    def collect(self, array: Array) -> None:
        self.num_bytes += array.nbytes
        self._waiting.append(array)
        self._waiting_bytes += array.nbytes
        if self._waiting_bytes >= TOGETHER_BYTES:
            self._join()

    def room(self, num_bytes: int, most: int = 1) -> Array | None:
        if num_bytes * most < ROOM_BYTES or num_bytes >= LARGE_BYTES:
            return None
        self._join()
        slab, at = self._last if self._last is not None else self._open(), self._filled
        return slab[at : at + num_bytes * min(most, (len(slab) - at) // num_bytes)]

    def buffers(self) -> Iterator[Array]:
        """All bytes in order, uint8; those in slabs begin at a page."""
        yield from self._kept
        if self._last is not None and self._filled:
            yield self._last[: self._filled]
        if self._waiting:
            yield _joined(self._waiting)

    def clear(self) -> list[Array]:
        taken, self._taken = self._taken, []
        self._last, self._filled, self._waiting, self._waiting_bytes = None, 0, [], 0
        super().clear()
        return taken

    def _has_made_room(self, array: Array) -> bool:
        """Whether an array stands in the room that was given; it is then one of the bytes."""
        at = _address(array) - self._last_address
        if self._last is None or not 0 <= at < len(self._last):
            return False
        if at != self._filled:
            raise AssertionError("an array was made at the end of a column, and others were appended first")
        self._filled += array.nbytes
        if self._filled == len(self._last):
            self._close()
        return True

    def _join(self) -> None:
        """Lay what waits behind the rest. A field that has only small arrays takes no slab."""
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_bytes = _joined(self._waiting), [], 0
        if self._last is None:
            self._kept.append(waiting)
        else:
            self._copy(waiting)

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
        self._last_address = _address(slab)
        self._taken.append(slab)
        return slab

    def _close(self) -> None:
        """What follows goes elsewhere."""
        if self._last is not None:
            self._kept.append(self._last[: self._filled])
        self._last, self._filled = None, 0


def _joined(arrays: list[Array]) -> Array:
    return _bytes_of(np.concatenate([array.reshape(-1) for array in arrays]))


def _bytes_of(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
