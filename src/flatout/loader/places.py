"""Places: where each sample of a split stands in the store."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.errors import LoaderError, StoreError
from flatout.store import StoreReader
from flatout.types import Array


@dataclass(frozen=True)
class Places:
    """Shard and row of each sample of a split, in index order."""

    shards: Array
    rows: Array
    positions: Array
    """Each sample's place in the index."""

    @classmethod
    def of(cls, store: StoreReader, positions: Array) -> Places:
        """The places of these positions of the store."""
        return cls(store.numbers["shard"][positions], store.numbers["row"][positions], positions)

    def __len__(self) -> int:
        return len(self.shards)

    def key_of(self, store: StoreReader, position: int) -> str:
        """A sample's key for messages: by its shard, or by the index where the shard cannot tell."""
        try:
            return store.shard(int(self.shards[position])).key(int(self.rows[position]))
        except (StoreError, LoaderError):
            return store.keys()[int(self.positions[position])]
