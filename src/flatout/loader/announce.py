"""Announcing reads: rows that are wanted soon are named to the system, which fetches them meanwhile.

Cold rows of 150 KB, MB/s here: plain map 103, MADV_RANDOM 148, pread 1,012, announced 2,591. On warm data it
would only cost. So a thread announces at first, goes on only if pages had to be fetched, and begins again as
soon as one has: the first batch of 64 rows took 450 ms as long as it had to be cold before anything was said.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from flatout.errors import StoreError
from flatout.loader.mapped import MappedRows
from flatout.loader.places import Places
from flatout.store import StoreReader
from flatout.store.announcing import ANNOUNCED_BYTES, RANDOM, WILL_NEED, advise
from flatout.types import Array

try:
    import resource
except ImportError:  # Windows, where stores are read by calls, which fault no page
    resource = None  # type: ignore[assignment]

QUIET_BATCHES = 32
"""Batches without a fetched page after which announcing stops; the first cold row starts it again, and what is
announced is not missed: so it goes on twice as long each time, up to"""
MOST_QUIET_BATCHES = 1 << 14
MOST_PIECES = 1024
"""That Linux takes in one call."""
_PROCESS_MADVISE = 440
"""Number of the system call, on every processor."""
_refused: list[bool] = []
"""Not empty once the system would not take many at once: it is not asked again."""


class FaultWatch(threading.local):
    """Whether this thread had to wait for pages lately, or does not know yet."""

    def __init__(self) -> None:
        self._faults = major_faults()
        self._patience = QUIET_BATCHES
        self._quiet = 0
        self.is_cold = True

    def note_batches(self, count: int) -> None:
        """Call after so many batches: compares the thread's count of major faults with the last time."""
        faults = major_faults()
        if faults == self._faults:
            self._quiet += count
        else:
            self._quiet = 0
            if not self.is_cold:
                self._patience = min(2 * self._patience, MOST_QUIET_BATCHES)
        self._faults = faults
        self.is_cold = self._quiet < self._patience


class TablesAhead:
    """Announces the tables of shards whose samples are wanted soon, each once; checksums stand in them."""

    def __init__(self, store: StoreReader, places: Places) -> None:
        self._store = store
        self._places = places
        self._is_told = np.zeros(len(store.meta.shards), bool)

    def announce(self, positions: Array) -> None:
        """These samples of the split are wanted soon."""
        shards = self._places.shards[positions]
        fresh = np.unique(shards[~self._is_told[shards]])
        self._is_told[fresh] = True
        for number in fresh.tolist():
            with suppress(StoreError):  # told to whoever reads it
                self._store.shard(number).announce_tables()


def expect_no_neighbours(rows: Array) -> None:
    """Rows of a mapped array are read in any order: what stands around one (8 MB here) is not to be fetched."""
    advise(rows.ctypes.data, rows.nbytes, RANDOM)


def announce(mapped: MappedRows, places: Array) -> None:
    """Ask the system to fetch these rows; returns at once."""
    announce_stretches(mapped.rows, places, places + 1)


def announce_stretches(rows: Array, starts: Array, stops: Array) -> None:
    """Ask the system to fetch rows start..stop-1 of a mapped array, for each pair; returns at once."""
    base, row_bytes = rows.ctypes.data, rows.strides[0]
    firsts, ends = base + starts * row_bytes, base + stops * row_bytes
    firsts -= firsts % mmap.PAGESIZE
    _will_need(_pieces(firsts, ends))


def _pieces(firsts: Array, ends: Array) -> Array:
    """(n, 2) int64: addresses and sizes of pieces that cover stretches of memory, none larger than allowed."""
    counts = -(-(ends - firsts) // ANNOUNCED_BYTES)
    number = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(number)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = firsts[number] + within * ANNOUNCED_BYTES
    return np.stack([start, np.minimum(ANNOUNCED_BYTES, ends[number] - start)], axis=1)


def _will_need(pieces: Array) -> None:
    """Ask the system to fetch pieces of memory, all at once where it can: each call lets go of the
    interpreter's lock, and beside a busy thread it takes half a millisecond to get it back."""
    if _refused or not _advise_together(pieces):
        for first, size in pieces.tolist():
            advise(first, size, WILL_NEED)


def _advise_together(pieces: Array) -> bool:
    """Whether Linux took all of them: a recent one does, an older one from root alone; a refusal is final."""
    try:
        process = os.pidfd_open(os.getpid())
    except (AttributeError, OSError):
        _refused.append(True)
        return False
    try:
        for at in range(0, len(pieces), MOST_PIECES):
            part = pieces[at : at + MOST_PIECES]
            told = _syscall()(_PROCESS_MADVISE, process, part.ctypes.data, len(part), WILL_NEED, 0)
            if told < 0:
                _refused.append(True)
            if told != part[:, 1].sum():
                return False
    finally:
        os.close(process)
    return True


def are_resident(rows: Array, places: Array) -> bool:
    """Whether rows of a mapped array are in memory, told by a page of the middle one: 3 to 6 us.

    The page is from the middle of that row: its ends come with its neighbours. Where it cannot be told, it is.
    """
    row_bytes, found = rows.strides[0], ctypes.c_ubyte(1)
    middle = rows.ctypes.data + int(places[len(places) // 2]) * row_bytes + row_bytes // 2
    _mincore()(middle - middle % mmap.PAGESIZE, 1, ctypes.byref(found))
    return bool(found.value & 1)


@cache
def _mincore() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mincore
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return function


@cache
def _syscall() -> Any:
    """The C library's own wrapper of the call is younger than the call."""
    function = ctypes.CDLL(None, use_errno=True).syscall
    kinds = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint)
    function.argtypes, function.restype = list(kinds), ctypes.c_long
    return function


def major_faults() -> int:
    """Pages that this thread had to wait for so far."""
    if resource is None:
        return 0
    usage = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)  # macOS counts by process only
    return int(resource.getrusage(usage).ru_majflt)


def all_major_faults() -> int:
    """Pages that any thread of this process had to wait for so far."""
    return 0 if resource is None else int(resource.getrusage(resource.RUSAGE_SELF).ru_majflt)
