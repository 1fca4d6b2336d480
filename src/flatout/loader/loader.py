"""FastDataLoader: batches of a store at memory speed, in an order that is arithmetic, resumable anywhere."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flatout.errors import ConfigError, LoaderStateError
from flatout.loader.announce import FaultWatch
from flatout.loader.batches import BatchRule, EpochOrder
from flatout.loader.dataset import FastDataset
from flatout.loader.fetch import VALID, Fetcher, ReadRule, restore
from flatout.loader.order import Order, Sequential, Shuffled
from flatout.loader.prefetch import Prefetcher
from flatout.loader.ranks import rank_and_world
from flatout.loader.state import LoaderState
from flatout.loader.transfer import Arrive, Batch, Transfer
from flatout.store import StoreReader
from flatout.types import Array

AHEAD_BYTES = 32 << 20
"""Rows are announced to the system this far ahead of their use."""
UNIT_BYTES = 2 << 20
"""Small batches are handed over together up to this size: one at a time, the hand-over costs 30 %."""


class FastDataLoader:
    """Iterates dict batches of one split.

    Iterate it like a DataLoader. Each `iter` has its own cursor and does nothing before its first `next`; a
    new one starts the next epoch unless `set_epoch` or `load_state_dict` said otherwise.

    Example:
        >>> loader = FastDataLoader("store", split="train", batch_size=64)          # doctest: +SKIP
        >>> for batch in loader: train(batch["signal"], batch["label"])             # doctest: +SKIP
    """

    def __init__(
        self,
        store: StoreReader | FastDataset | str | Path,
        batch_size: int = 8,
        *,
        split: str | None = None,
        shuffle: bool = False,
        order: Order | None = None,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int | None = None,
        prefetch_factor: int = 4,
        rank: int | None = None,
        world_size: int | None = None,
        read: ReadRule | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size {batch_size}: at least 1 is needed")
        if isinstance(store, FastDataset):
            split, store = store.split if split is None else split, store.store
        self.store = store if isinstance(store, StoreReader) else StoreReader(store)
        self.batch_size = batch_size
        self.split = split
        self.drop_last = drop_last
        self.batch_sampler = None
        self.sampler = _EpochSetter(self)
        self._seed = seed
        self._positions = _positions(self.store, split)
        self._order: Order = order or Sequential(len(self._positions))
        if shuffle and order is None:
            self._order = Shuffled(len(self._positions), seed)
        self._num_threads = min(2, os.cpu_count() or 1) if num_workers is None else num_workers
        self._depth = max(1, prefetch_factor)
        self._ranks = (rank, world_size)
        self._read = read or ReadRule()
        self._transfer = Transfer(device)
        self._global_batch: int | None = None
        self._next = (0, 0)
        """Epoch and batch at which the next iterator starts."""
        self._at = (0, 0)
        """Epoch and batch up to which the newest iterator has yielded."""
        self._spare = _Spare()

    def __len__(self) -> int:
        """Batches of an epoch on this rank."""
        return self._rule().num_batches

    def __iter__(self) -> Iterator[Batch]:
        return _Cursor(self)

    def set_epoch(self, epoch: int) -> None:
        """The next iterator runs this epoch: from its start, or from where a loaded state of it stood."""
        if epoch != self._next[0]:
            self._next = self._at = (epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the newest iterator stands, in samples yielded to the user."""
        return self._state(*self._at).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iterator continues where the state was taken, on any number of ranks.

        Raises:
            LoaderStateError: the state is of another store, split, order or seed.
        """
        loaded = LoaderState.from_dict(state)
        loaded.check_fits(self._state(loaded.epoch, 0))
        if not 0 <= loaded.samples <= loaded.num_samples or loaded.global_batch < 1:
            raise LoaderStateError(f"the saved state stands at sample {loaded.samples} of {loaded.num_samples}")
        self._global_batch = loaded.global_batch
        rule = self._rule()
        batch = -(-loaded.samples // loaded.global_batch)
        done = batch >= rule.num_batches
        self._next = self._at = (loaded.epoch + 1, 0) if done else (loaded.epoch, batch)

    def close(self) -> None:
        """End the producers; iterators that are still used start their own."""
        self._spare.put(None, None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_spare": _Spare(), "sampler": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.sampler = _EpochSetter(self)

    def _rule(self) -> BatchRule:
        rank, world = rank_and_world(*self._ranks)
        total = self._global_batch or self.batch_size * world
        return BatchRule(self._order.num_samples, total, rank, world, self.drop_last)

    def _state(self, epoch: int, batch: int) -> LoaderState:
        rule = self._rule()
        return LoaderState(
            order=self._order.name,
            seed=self._seed,
            epoch=epoch,
            samples=rule.samples_after(batch),
            num_samples=rule.num_samples,
            global_batch=rule.global_batch,
            store=self.store.meta.content_hash,
        )

    def _stream(self, rule: BatchRule, epoch: int, batch: int) -> tuple[Prefetcher[Arrive], int]:
        """A prefetcher that stands at this batch, and the number of the epoch's first item in it."""
        key = (rule, os.getpid())
        number = epoch * rule.num_batches + batch
        spare = self._spare.take(key)
        if spare is not None and spare.next_number == number:
            return spare, epoch * rule.num_batches
        if spare is not None:
            spare.close()
        maker = _Maker(self.store, self._positions, self._order, rule, self._read, self._transfer)
        unit = max(1, min(16, UNIT_BYTES // max(maker.bytes_per_batch(), 1)))
        return Prefetcher(maker, number, self._num_threads, self._depth, unit), epoch * rule.num_batches


class _Cursor:
    """One pass over an epoch."""

    def __init__(self, loader: FastDataLoader) -> None:
        self._loader = loader
        self._stream: Prefetcher[Arrive] | None = None
        self._rule: BatchRule | None = None
        self._batch = 0
        self._epoch = 0

    def __iter__(self) -> _Cursor:
        return self

    def __next__(self) -> Batch:
        if self._rule is None:
            self._begin()
        assert self._rule is not None
        if self._batch >= self._rule.num_batches:
            self._finish()
            raise StopIteration
        assert self._stream is not None
        batch = self._stream.take()()
        self._batch += 1
        self._loader._at = (self._epoch, self._batch)
        return restore(batch, self._loader.store.fields)

    def _begin(self) -> None:
        loader = self._loader
        self._rule = loader._rule()
        self._epoch, self._batch = loader._at = loader._next
        if self._batch < self._rule.num_batches:
            self._stream, _ = loader._stream(self._rule, self._epoch, self._batch)
        loader._next = (self._epoch + 1, 0)  # also after a break

    def _finish(self) -> None:
        if self._stream is not None:
            self._loader._spare.put((self._rule, os.getpid()), self._stream)
            self._stream = None


class _Maker:
    """Item number in, batch out: what the producers call."""

    def __init__(
        self,
        store: StoreReader,
        positions: Array,
        order: Order,
        rule: BatchRule,
        read: ReadRule,
        transfer: Transfer,
    ) -> None:
        self._order = EpochOrder(order)
        self._rule = rule
        self._transfer = transfer
        self._fetcher = Fetcher(store, positions, rule.largest, read, is_pinned=transfer.is_pinned)
        self._masked = rule.world > 1 and not rule.drop_last
        self._lock = threading.Lock()
        self._faults = FaultWatch()
        self._ahead = max(2, min(64, AHEAD_BYTES // max(self.bytes_per_batch(), 1)))

    def __call__(self, number: int) -> Arrive:
        if self._faults.is_cold:
            self._fetcher.announce(self._positions(number + self._ahead)[0])
        positions, num_valid = self._positions(number)
        made = self._fetcher.fetch(positions)
        self._faults.note_batch()
        if self._masked:
            made[VALID] = torch.arange(len(positions)) < num_valid
        return self._transfer.send(made)

    def _positions(self, number: int) -> tuple[Array, int]:
        """The samples of an item, and how many of them are not repeats."""
        epoch, batch = divmod(number, self._rule.num_batches)
        places, num_valid = self._rule.places(batch)
        with self._lock:
            return self._order.positions(epoch, places), num_valid

    def bytes_per_batch(self) -> int:
        return self._fetcher.bytes_per_row * self._rule.largest


class _Spare:
    """The prefetcher that waits for the next epoch, if any."""

    def __init__(self) -> None:
        self._key: Any = None
        self._stream: Prefetcher[Arrive] | None = None

    def take(self, key: Any) -> Prefetcher[Arrive] | None:
        stream, self._stream = self._stream, None
        return stream if self._key == key else None

    def put(self, key: Any, stream: Prefetcher[Arrive] | None) -> None:
        if self._stream is not None:
            self._stream.close()
        self._key, self._stream = key, stream


class _EpochSetter:
    """What Lightning looks for to set the epoch: `loader.sampler.set_epoch`."""

    def __init__(self, loader: FastDataLoader) -> None:
        self._loader = weakref.ref(loader)  # no cycle: dropping the loader ends its threads at once

    def set_epoch(self, epoch: int) -> None:
        loader = self._loader()
        if loader is not None:
            loader.set_epoch(epoch)


def _positions(store: StoreReader, split: str | None) -> Array:
    if split is None:
        return np.arange(len(store))
    found = store.positions(split)
    if not len(found):
        raise ConfigError(
            f"{store.folder} has no samples in split '{split}'; it has: {', '.join(store.meta.splits)}"
        )
    return found
