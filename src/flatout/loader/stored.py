"""Samples one by one from their shards: compressed ones, decompressed here and kept where that is wanted.

Neither libhdf5 nor its lock is involved, and zstd and zlib let other threads run meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from flatout.loader.cache import SampleCache
from flatout.loader.places import Places
from flatout.loader.pread import Files
from flatout.loader.rows import FixedRows
from flatout.loader.told_files import ToldFiles
from flatout.store import StoreReader
from flatout.types import Array, FieldSpec


@dataclass(frozen=True)
class StoredSamples:
    """One field of a split, sample by sample."""

    store: StoreReader
    name: str
    places: Places
    cache: SampleCache | None = None
    told: ToldFiles | None = None
    """What is told ahead of reads by calls; None: the store is mapped."""

    @classmethod
    def of(
        cls,
        store: StoreReader,
        spec: FieldSpec,
        places: Places,
        files: Files | None = None,
        cache: SampleCache | None = None,
    ) -> StoredSamples:
        """A field's samples.

        Args:
            files: what the store is read with, if by calls.
            cache: where decompressed samples are kept.
        """
        told = None if files is None else ToldFiles.of(store, spec, places, files)
        return cls(store, spec.name, places, cache, told)

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

    def announce(self, positions: Array) -> None:
        """These samples are wanted soon."""
        if self.told is not None:
            self.told.announce(positions)


@dataclass(frozen=True)
class StoredRows(FixedRows):
    """A field of one shape: rows into a buffer."""

    samples: StoredSamples

    def gather(self, found: Array, out: Array) -> None:
        for at, position in enumerate(found.tolist()):
            out[at] = self.samples.read(position)

    def announce(self, found: Array) -> None:
        self.samples.announce(found)
