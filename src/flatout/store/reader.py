"""StoreReader: a prepared store, opened in a blink: samples by position, without libhdf5."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from flatout.errors import StoreCorruptError
from flatout.store.index import RECORDS, index_schema, read_index
from flatout.store.metadata import SHARD_FOLDER, load_metadata
from flatout.store.shard_reader import ShardReader
from flatout.types import Array


class StoreReader:
    """One consistent version of a store. Opening checks that every shard is there and of its size.

    Safe to pickle and to use after a fork: shards are mapped again, lazily, in each process.

    Example:
        >>> store = StoreReader("prepared")                                # doctest: +SKIP
        >>> len(store), store.read(0)["image"].shape                       # doctest: +SKIP
        (180, (1, 48, 64, 48))
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.meta = load_metadata(self.folder)
        self.fields = {spec.name: spec for spec in self.meta.fields}
        self._check_sizes()
        self._shards: dict[int, ShardReader] = {}
        self._pid = os.getpid()

    def __len__(self) -> int:
        return self.meta.num_samples

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["folder"])  # type: ignore[misc]

    @cached_property
    def numbers(self) -> dict[str, Array]:
        """The index's numeric columns: key_hash, split, group, shard, row, and lengths of ragged fields."""
        schema = index_schema(self.meta.fields)
        wanted = [name for name in schema.names if name not in RECORDS]
        table = read_index(self.index_path, wanted)
        if table.num_rows != len(self):
            raise self._bad_index(f"{table.num_rows:,} rows, the root says {len(self):,}")
        is_whole = not any(column.null_count for column in table.columns)
        if not is_whole or [*table.schema] != [schema.field(name) for name in wanted]:
            raise self._bad_index("other columns than an index has")
        numbers = {name: table[name].to_numpy() for name in wanted}
        stops = {"shard": len(self.meta.shards), "split": len(self.meta.splits), "row": 1 << 31}
        for name, stop in stops.items():
            if len(self) and not 0 <= numbers[name].min() <= numbers[name].max() < stop:
                raise self._bad_index(f"a {name} that the store does not have")
        return numbers

    @property
    def index_path(self) -> Path:
        return self.folder / self.meta.index

    def keys(self) -> list[str]:
        """Every sample's key, in index order; read from disk on each call."""
        return read_index(self.index_path, ["key"])["key"].to_pylist()  # type: ignore[no-any-return]

    def positions(self, split: str) -> Array:
        """Positions of a split's samples, in index order."""
        if split not in self.meta.splits:
            return np.empty(0, np.int64)
        return np.flatnonzero(self.numbers["split"] == self.meta.splits.index(split))

    def shard(self, number: int) -> ShardReader:
        """One shard, mapped on first use in this process."""
        if os.getpid() != self._pid:
            self._shards, self._pid = {}, os.getpid()
        if number not in self._shards:
            meta = self.meta.shards[number]
            self._shards[number] = ShardReader(self.folder / SHARD_FOLDER / meta.file, meta, self.meta.fields)
        return self._shards[number]

    def read(self, position: int) -> dict[str, Array]:
        """One sample with every field restored.

        Raises:
            IndexError: there is no such position.
        """
        if not -len(self) <= position < len(self):
            raise IndexError(f"position {position} of a store with {len(self):,} samples")
        shard = self.shard(int(self.numbers["shard"][position]))
        row = int(self.numbers["row"][position])
        if row >= len(shard):
            raise self._bad_index(f"row {row} in a shard of {len(shard)}")
        return {name: shard.read(name, row) for name in self.fields}

    def _check_sizes(self) -> None:
        for meta in self.meta.shards:
            path = self.folder / SHARD_FOLDER / meta.file
            try:
                size = path.stat().st_size
            except OSError as error:
                raise self._damaged(path, error.strerror or str(error)) from error
            if size != meta.size:
                raise self._damaged(path, f"{size:,} bytes instead of {meta.size:,}")

    def _bad_index(self, reason: str) -> StoreCorruptError:
        return StoreCorruptError(
            f"{self.index_path} has {reason}; 'flatout verify {self.folder} --repair' rebuilds it"
        )

    def _damaged(self, path: Path, reason: str) -> StoreCorruptError:
        return StoreCorruptError(
            f"shard {path} is damaged: {reason}. 'flatout verify {self.folder} --repair' rebuilds it"
        )
