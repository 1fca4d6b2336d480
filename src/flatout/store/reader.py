"""StoreReader: a prepared store, opened in a blink: samples by position, without libhdf5."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from flatout.errors import ConfigError, StoreCorruptError, StoreError
from flatout.lazy import cached_property
from flatout.store.byte_source import MappedBytes, OpenBytes
from flatout.store.index import read_index, read_numbers
from flatout.store.metadata import SHARD_FOLDER, StoreMeta, is_replaced, load_metadata
from flatout.store.shard_reader import ShardReader
from flatout.types import Array

MAX_ROWS = 1 << 31
"""Rows of a shard; the index counts them in 32 bits."""
SHARDS_AHEAD = 64
"""Shards whose tables are announced before they are read. By calls, twice as many files may be open."""
ROW_BLOCK = 1 << 20
"""Samples whose rows are checked together: all at once would take 5 bytes a sample more."""


class StoreReader:
    """One consistent version of a store. Opening checks that every shard is there and of its size.

    Safe to pickle and to use after a fork: shards are mapped again, lazily, in each process. An unpickled
    reader is of the same version, whatever was prepared meanwhile.

    Example:
        >>> store = StoreReader("prepared")                                # doctest: +SKIP
        >>> len(store), store.read(0)["image"].shape                       # doctest: +SKIP
        (180, (1, 48, 64, 48))
    """

    def __init__(self, folder: str | Path) -> None:
        self._open(Path(folder), load_metadata(Path(folder)))

    def _open(self, folder: Path, meta: StoreMeta) -> None:
        self.folder, self.meta = folder, meta
        self.fields = {spec.name: spec for spec in self.meta.fields}
        self._check_sizes()
        self._open_bytes: OpenBytes = MappedBytes
        self._shards: dict[int, ShardReader] = {}
        self._pid = os.getpid()

    def __len__(self) -> int:
        return self.meta.num_samples

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "meta": self.meta}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._open(state["folder"], state["meta"])

    def reading_through(self, open_bytes: OpenBytes) -> StoreReader:
        """The same version of the store, whose shards are read through `open_bytes` and not mapped.

        Pickled, it becomes an ordinary reader again.
        """
        other = StoreReader.__new__(StoreReader)
        other._open(self.folder, self.meta)
        other._open_bytes = open_bytes
        other.numbers = self.numbers  # 38 bytes a sample need not be there twice
        return other

    @cached_property
    def numbers(self) -> dict[str, Array]:
        """The index's numeric columns: key_hash, split, group, shard, row, and lengths of ragged fields."""
        with self._explained(self.index_path):
            numbers = read_numbers(self.index_path, self.meta.fields, len(self))
        stops = {"shard": len(self.meta.shards), "split": len(self.meta.splits), "row": MAX_ROWS}
        for name, stop in stops.items():
            if len(self) and not 0 <= numbers[name].min() <= numbers[name].max() < stop:
                raise self._bad_index(f"a {name} that the store does not have")
        self._check_rows(numbers["shard"], numbers["row"])
        return numbers

    @property
    def index_path(self) -> Path:
        return self.folder / self.meta.index

    def keys(self) -> list[str]:
        """Every sample's key, in index order; read from disk on each call."""
        return self._read_index(["key"])["key"].to_pylist()  # type: ignore[no-any-return]

    def positions(self, split: str) -> Array:
        """Positions of a split's samples, in index order.

        Raises:
            ConfigError: there is no such split.
        """
        if split not in self.meta.splits:
            there = ", ".join(self.meta.splits) or "no splits"
            raise ConfigError(f"{self.folder} has no samples in split '{split}'; it has: {there}")
        return np.flatnonzero(self.numbers["split"] == self.meta.splits.index(split))

    def shard(self, number: int) -> ShardReader:
        """One shard, opened on first use in this process."""
        if os.getpid() != self._pid:
            self._shards, self._pid = {}, os.getpid()
        found = self._shards.get(number)
        if found is None:
            meta = self.meta.shards[number]
            path = self.folder / SHARD_FOLDER / meta.file
            with self._explained(path):
                found = ShardReader(path, meta, self.meta.fields, self._open_bytes)
            self._shards[number] = found
        return found

    def announced(self, field: str | None = None, numbers: Iterable[int] | None = None) -> Iterator[int]:
        """Numbers of shards, of all unless some are given, for whoever reads their tables one after the other.

        Those of the next shards are on their way from the disk, or the data of a field of one shape.
        """
        waiting: deque[int] = deque()
        for number in range(len(self.meta.shards)) if numbers is None else numbers:
            with suppress(StoreError, OSError):  # told to whoever reads it
                shard = self.shard(number)
                shard.announce_tables() if field is None else shard.announce_data(field)
            waiting.append(number)
            if len(waiting) > SHARDS_AHEAD:
                yield waiting.popleft()
        yield from waiting

    def read(self, position: int) -> dict[str, Array]:
        """One sample with every field restored.

        Raises:
            IndexError: there is no such position. StoreCorruptError: its bytes do not match their checksum.
        """
        if not -len(self) <= position < len(self):
            raise IndexError(f"position {position} of a store with {len(self):,} samples")
        shard = self.shard(int(self.numbers["shard"][position]))
        row = int(self.numbers["row"][position])
        for name in self.fields:
            shard.check(name, row)
        return {name: shard.read(name, row) for name in self.fields}

    def _check_rows(self, shards: Array, rows: Array) -> None:
        """No sample stands past the end of its shard: where all are mapped in one range, another's is there."""
        sizes = np.array([min(shard.rows, MAX_ROWS - 1) for shard in self.meta.shards], np.int32)
        for start in range(0, len(rows), ROW_BLOCK):
            part = slice(start, start + ROW_BLOCK)
            if len(beyond := np.flatnonzero(rows[part] >= sizes[shards[part]])):
                at = start + int(beyond[0])
                raise self._bad_index(f"row {rows[at]} in a shard of {sizes[shards[at]]}")

    def _check_sizes(self) -> None:
        for meta in self.meta.shards:
            path = self.folder / SHARD_FOLDER / meta.file
            with self._explained(path):
                self._check_size(path, meta.size)

    def _check_size(self, path: Path, expected: int) -> None:
        try:
            size = path.stat().st_size
        except OSError as error:
            raise self._damaged(path, error.strerror or str(error)) from error
        if size != expected:
            raise self._damaged(path, f"{size:,} bytes instead of {expected:,}")

    def _read_index(self, columns: Sequence[str]) -> Any:
        with self._explained(self.index_path):
            return read_index(self.index_path, columns, len(self))

    @contextmanager
    def _explained(self, path: Path) -> Iterator[None]:
        """A file that is gone because the store has another version now is no damage.

        Raises:
            StoreError: it is gone, and the root is another one than this reader's.
        """
        try:
            yield
        except StoreCorruptError as error:
            if path.exists() or not is_replaced(self.folder, self.meta):
                raise
            raise StoreError(
                f"{path} is gone: the store was compacted or prepared again since it was opened; open it anew"
            ) from error

    def _bad_index(self, reason: str) -> StoreCorruptError:
        return StoreCorruptError(
            f"{self.index_path} has {reason}; 'flatout verify {self.folder} --repair' rebuilds it"
        )

    def _damaged(self, path: Path, reason: str) -> StoreCorruptError:
        return StoreCorruptError(
            f"shard {path} is damaged: {reason}. 'flatout verify {self.folder} --repair' rebuilds it"
        )
