"""SampleCache: decompressed samples, the least recently used dropped first, bounded in number and in bytes.

Samples of uncompressed fields are not kept here: the system's page cache has them already.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import astuple, dataclass

import numpy as np

from flatout.types import Array


@dataclass(frozen=True, slots=True)
class CacheRule:
    """How much is kept at the most."""

    num_samples: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache did so far and what it holds; an array is one field of one sample."""

    hits: int = 0
    misses: int = 0
    num_arrays: int = 0
    num_bytes: int = 0

    def __add__(self, other: CacheStats) -> CacheStats:
        sums = [one + two for one, two in zip(astuple(self), astuple(other), strict=True)]
        return CacheStats(*sums)

    @property
    def hit_rate(self) -> float:
        """Share of the arrays asked for that were there; 0 before the first."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0


class SampleCache:
    """Samples of one field, by position. Threads may share it."""

    def __init__(self, max_arrays: int, max_bytes: int) -> None:
        self._max_arrays = max_arrays
        self._max_bytes = max_bytes
        self._arrays: OrderedDict[int, Array] = OrderedDict()
        self._num_bytes = 0
        self._hits = 0
        self._misses = 0
        self._lock = threading.Lock()

    @property
    def stats(self) -> CacheStats:
        with self._lock:
            return CacheStats(self._hits, self._misses, len(self._arrays), self._num_bytes)

    def get(self, position: int) -> Array | None:
        """The sample at a position, not to be written to; None if it is not there."""
        with self._lock:
            found = self._arrays.get(position)
            if found is None:
                self._misses += 1
                return None
            self._arrays.move_to_end(position)
            self._hits += 1
            return found

    def put(self, position: int, array: Array) -> None:
        """Keep a copy of a sample, dropping what was used longest ago until it fits; too large: nothing."""
        if array.nbytes > self._max_bytes or self._max_arrays < 1:
            return
        copy = np.array(array)  # a view would hold on to all that it is cut from
        copy.flags.writeable = False
        with self._lock:
            self._drop(position)
            while len(self._arrays) >= self._max_arrays or self._num_bytes + copy.nbytes > self._max_bytes:
                self._drop(next(iter(self._arrays)))
            self._arrays[position] = copy
            self._num_bytes += copy.nbytes

    def _drop(self, position: int) -> None:
        gone = self._arrays.pop(position, None)
        if gone is not None:
            self._num_bytes -= gone.nbytes
