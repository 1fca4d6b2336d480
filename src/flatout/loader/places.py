"""Places: where each sample of a split stands in the store."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.store import StoreReader
from flatout.types import Array


@dataclass(frozen=True)
class Places:
    """Shard and row of each sample of a split, in index order."""

    shards: Array
    rows: Array

    @classmethod
    def of(cls, store: StoreReader, positions: Array) -> Places:
        """The places of these positions of the store."""
        return cls(store.numbers["shard"][positions], store.numbers["row"][positions])

    def __len__(self) -> int:
        return len(self.shards)
