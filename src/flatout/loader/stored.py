"""Samples one by one from their shards: compressed ones, decompressed here and kept where that is wanted.

Neither libhdf5 nor its lock is involved, and zstd and zlib let other threads run meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from flatout.loader.cache import SampleCache
from flatout.loader.places import Places
from flatout.loader.rows import FixedRows
from flatout.store import StoreReader
from flatout.types import Array


@dataclass(frozen=True)
class StoredSamples:
    """One field of a split, sample by sample."""

    store: StoreReader
    name: str
    places: Places
    cache: SampleCache | None = None

    def read(self, position: int) -> Array:
        """One sample as stored (encoded, decompressed), not to be written to.

        Raises:
            StoreCorruptError: it cannot be decompressed; naming shard, sample and field.
        """
        found = None if self.cache is None else self.cache.get(position)
        if found is None:
            shard = self.store.shard(int(self.places.shards[position]))
            found = shard.stored(self.name, int(self.places.rows[position]))
            if self.cache is not None:
                self.cache.put(position, found)
        return found


@dataclass(frozen=True)
class StoredRows(FixedRows):
    """A field of one shape: rows into a buffer."""

    samples: StoredSamples

    def gather(self, found: Array, out: Array) -> None:
        for at, position in enumerate(found.tolist()):
            out[at] = self.samples.read(position)
