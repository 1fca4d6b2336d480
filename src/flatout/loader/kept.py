"""Kept: what a loader holds on to from one stream of batches to the next.

The open split with its maps, buffers and the checksums compared so far; caches; and samples found damaged.
"""

from __future__ import annotations

import os
from typing import Any

from flatout.loader.cache import CacheStats, SampleCache
from flatout.loader.damage import DamageLog
from flatout.loader.fetch import Fetcher, ReadRule
from flatout.loader.resident import Resident, check_resident, free_bytes
from flatout.loader.samples import mean_bytes
from flatout.loader.sweep import MIN_BYTES, Sweep
from flatout.loader.transfer import Batch, Transfer
from flatout.store import StoreReader
from flatout.types import Array, FieldSpec


class Kept:
    """Belongs to one loader. Its memory belongs to one process: a forked or unpickled one starts its own."""

    def __init__(self, read: ReadRule) -> None:
        self.damage = DamageLog()
        self._read = read
        self._pid: int | None = None
        self._caches: dict[str, SampleCache] = {}
        self._resident: Resident | None = None
        self._fetcher: Fetcher | None = None
        self._sweep: Sweep | None = None

    @property
    def stats(self) -> CacheStats:
        """Of the caches of decompressed samples together; all 0 if there is none."""
        return sum((cache.stats for cache in self._caches.values()), CacheStats())

    def fetcher(
        self, store: StoreReader, positions: Array, batch_size: int, transfer: Transfer, restores: bool = False
    ) -> Fetcher | Resident:
        """What makes a split's batches; asked to, it loads the split to the device the first time.

        Args:
            restores: see `Fetcher`.

        Raises:
            ConfigError, LoaderError: the split cannot be held on the device.
        """
        if self._pid != os.getpid():
            self._pid, self._caches = os.getpid(), self._new_caches(store, positions)
            self._resident = self._fetcher = self._sweep = None
        if self._resident is not None:
            return self._resident
        if self._fetcher is not None and self._fetcher.batch_size == batch_size:
            return self._fetcher
        fetcher = Fetcher(
            store,
            positions,
            batch_size,
            self._read,
            is_pinned=transfer.is_pinned,
            restores=restores,
            caches=self._caches,
            damage=self.damage,
        )
        if self._read.on_device:
            num_bytes = fetcher.bytes_per_row * len(positions)
            check_resident(self._fields(store), num_bytes, free_bytes(transfer.device), transfer.device)
            self._resident = Resident(fetcher, transfer.device)
            return self._resident
        self._fetcher = fetcher
        return fetcher

    def sweep(self, store: StoreReader, positions: Array) -> Sweep | None:
        """What announces a cold split whole: begun with the first stream of a process, once. None: it is not
        worth it, or all is read already."""
        fetcher = self._fetcher
        if self._sweep is not None or fetcher is None or not (fetcher.announces and Sweep.can_look()):
            return self._sweep
        num_bytes = fetcher.bytes_per_row * len(positions)
        if num_bytes >= MIN_BYTES:
            shards = store.numbers["shard"][positions]
            self._sweep = Sweep(fetcher.store, shards, self._fields(store), num_bytes)
        return self._sweep

    def close(self) -> None:
        """End what runs; a sweep that had not come to its end is begun again with the next stream."""
        if self._sweep is not None and not self._sweep.close():
            self._sweep = None

    def pick(self, batch: Batch) -> Batch:
        """A batch that has arrived, with the rows that were on the device already."""
        return batch if self._resident is None else self._resident.pick(batch)

    def _new_caches(self, store: StoreReader, positions: Array) -> dict[str, SampleCache]:
        """One a compressed field; they share the bytes as their samples do."""
        packed = [name for name, spec in self._fields(store).items() if spec.compression != "none"]
        rule = self._read.cache
        if rule is None or self._read.on_device:
            return {}
        sizes = {name: max(1, mean_bytes(store, positions, [name])) for name in packed}
        most = {name: rule.num_bytes * size // sum(sizes.values()) for name, size in sizes.items()}
        return {name: SampleCache(rule.num_samples, most[name]) for name in packed}

    def _fields(self, store: StoreReader) -> dict[str, FieldSpec]:
        """Those that are read."""
        names = store.fields if self._read.fields is None else self._read.fields
        return {name: store.fields[name] for name in names}

    def __getstate__(self) -> dict[str, Any]:
        of_process: dict[str, Any] = {
            "_pid": None,
            "_caches": {},
            "_resident": None,
            "_fetcher": None,
            "_sweep": None,
        }
        return {**self.__dict__, **of_process}
