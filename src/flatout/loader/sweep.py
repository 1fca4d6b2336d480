"""Sweep: a cold split that fits into memory is announced whole, file after file, beside its first batches.

Rows in random order come from a disk at a fraction of the rate of its files as they stand: 16 KB at a time 0.6
of it, with the sweep 0.9. What the next batches need is announced beside it row by row, less far ahead: some
of it has come by the time that it would be wanted.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flatout.loader.machine import describe_machine
from flatout.loader.ranges import byte_ranges
from flatout.store import StoreReader
from flatout.store.announcing import ANNOUNCED_BYTES, announce_bytes
from flatout.types import Array

MIN_BYTES = 32 << 20
"""Less is there as soon by its rows."""
FREE_SHARE = 0.5
"""Of the free memory that a split may fill. Pages that others need are taken back by the system."""
WANTED_SHARE = 0.5
"""Of a shard's rows that a split must have for all of it to be read."""
NUM_LOOKS = 16
END_WAIT_S = 5.0
"""Longest that whoever ends a sweep waits for its piece under way."""

_log = logging.getLogger(__name__)


class Extent(NamedTuple):
    """A stretch of a shard's file that holds one field."""

    path: Path
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


class Sweep:
    """Announces in a thread of its own; ended by `close`, or when it is dropped."""

    def __init__(self, store: StoreReader, shards: Array, fields: Iterable[str], num_bytes: int) -> None:
        """
        Args:
            store: as its samples are read: what may not be mapped is not mapped here either.
            shards: of each sample of the split.
            fields: those that are read.
            num_bytes: of the split's samples once they are read.
        """
        stop, self._announcing = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=_sweep,
            args=(store, shards, tuple(fields), num_bytes, stop, self._announcing),
            name="flatout-sweep",
            daemon=True,
        )
        self._finalizer = weakref.finalize(self, _end, self._thread, stop)
        self._thread.start()

    @staticmethod
    def can_look() -> bool:
        """Whether this system tells what it has in memory, and takes announcements."""
        return hasattr(os, "RWF_NOWAIT") and hasattr(os, "posix_fadvise")

    @property
    def is_under_way(self) -> bool:
        """Whether it announces now: not while it finds out what there is to announce."""
        return self._announcing.is_set()

    def close(self) -> bool:
        """End it; whether it had come to its end by itself."""
        is_done = not self._thread.is_alive()
        self._finalizer()
        return is_done


def _end(thread: threading.Thread, stop: threading.Event) -> None:
    stop.set()
    if thread is not threading.current_thread():  # the collector may run anywhere
        thread.join(END_WAIT_S)


def _sweep(
    store: StoreReader,
    shards: Array,
    fields: tuple[str, ...],
    num_bytes: int,
    stop: threading.Event,
    announcing: threading.Event,
) -> None:
    try:
        most = describe_machine(look_for_gpu=False).free_bytes * FREE_SHARE
        file_bytes = sum(store.meta.shards[number].size for number in wanted_shards(store, shards))
        if min(num_bytes, file_bytes) > most:  # no shard need be opened to see that
            return
        extents = list(takewhile(lambda _: not stop.is_set(), extents_of(store, shards, fields)))
        if sum(extent.size for extent in extents) <= most and is_cold(extents):
            announcing.set()
            for extent in extents:
                _announce(extent, stop)
    except Exception:  # of a file that cannot be read: whoever reads a sample of it says so
        _log.debug("not all of the split could be announced", exc_info=True)
    finally:
        announcing.clear()


def wanted_shards(store: StoreReader, shards: Array) -> list[int]:
    """Numbers of the shards of which a split has many rows."""
    counts = np.bincount(shards, minlength=len(store.meta.shards))
    num_rows = np.array([shard.rows for shard in store.meta.shards])
    return np.flatnonzero((counts > 0) & (counts >= WANTED_SHARE * num_rows)).tolist()


def extents_of(store: StoreReader, shards: Array, fields: Iterable[str]) -> Iterator[Extent]:
    """Where the fields stand in each of the wanted shards, in the order of the files."""
    numbers: Iterable[int] = wanted_shards(store, shards)
    if any(store.fields[name].is_ragged or store.fields[name].compression != "none" for name in fields):
        numbers = store.announced(numbers=numbers)  # tables tell where such samples stand
    for number in numbers:
        shard = store.shard(number)
        for name in fields:
            ends = byte_ranges(shard, store.fields[name], np.array([0, len(shard) - 1]))
            if len(ends):
                yield Extent(shard.path, int(ends.min()), int(ends.max()))


def is_cold(extents: list[Extent]) -> bool:
    """Whether the system does not have some of them in memory, by looks at even distances of bytes.

    Not of extents: with two fields a shard every look might fall on the small one, which has been loaded.
    """
    edges = np.cumsum([0, *(extent.size for extent in extents)])
    looks = (2 * np.arange(NUM_LOOKS) + 1) * edges[-1] // (2 * NUM_LOOKS)
    found = np.searchsorted(edges, looks, "right") - 1
    places = zip(found.tolist(), (looks - edges[found]).tolist(), strict=True)
    return bool(extents) and any(is_missing(extents[at].path, extents[at].start + look) for at, look in places)


def is_missing(path: Path, offset: int) -> bool:
    """Whether to read this byte would mean to wait; no where nothing can tell."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError:  # a file system that does not know the question
        return False
    finally:
        os.close(descriptor)
    return False


def _announce(extent: Extent, stop: threading.Event) -> None:
    descriptor = os.open(extent.path, os.O_RDONLY)
    try:
        for start in range(extent.start, extent.stop, ANNOUNCED_BYTES):
            if stop.is_set():
                return
            announce_bytes(descriptor, start, min(start + ANNOUNCED_BYTES, extent.stop))
    finally:
        os.close(descriptor)
