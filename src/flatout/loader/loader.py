"""FastDataLoader: batches of a store at memory speed, in an order that is arithmetic, resumable anywhere."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flatout.errors import ConfigError, LoaderStateError
from flatout.lazy import cached_property
from flatout.loader.batches import Batches
from flatout.loader.cache import CacheStats
from flatout.loader.cursor import Cursor
from flatout.loader.dataset import FastDataset, checked_fields, split_positions
from flatout.loader.fetch import Fetcher, ReadRule
from flatout.loader.kept import Kept
from flatout.loader.lane import Gate, Lane
from flatout.loader.lengths import planned_lengths
from flatout.loader.machine import count_cores
from flatout.loader.maker import BatchMaker
from flatout.loader.order import Order, Sequential, Shuffled, check_choices
from flatout.loader.padding import batch_rows, padding_share, plain_rows
from flatout.loader.plan import BatchPlan
from flatout.loader.platform import most_producers
from flatout.loader.prefetch import Prefetcher
from flatout.loader.ranks import is_known, rank_and_world
from flatout.loader.restored import can_restore
from flatout.loader.sampler import EpochSetter
from flatout.loader.spare import Spare
from flatout.loader.state import LoaderState
from flatout.loader.tokens import TokenBatches
from flatout.loader.transfer import Augment, Batch, Sent, Transfer
from flatout.store import StoreReader
from flatout.store.checks import crc32c_at

_log = logging.getLogger(__name__)


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
        shuffle: bool = False,
        *,
        split: str | None = None,
        order: Order | None = None,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int | None = None,
        prefetch_factor: int = 4,
        rank: int | None = None,
        world_size: int | None = None,
        read: ReadRule | None = None,
        device: str | torch.device | None = None,
        restore: bool = True,
        length_buckets: bool = False,
        max_tokens: int | None = None,
        augment: Augment | None = None,
    ) -> None:
        """`restore=False` hands encoded fields over as they are stored, with their scale beside them.

        `length_buckets` makes batches of samples of similar length; `max_tokens` does, too, and takes as many
        as padded length x samples allows, whatever `batch_size` is. `augment` is called with each batch, on its
        device, and the epoch it belongs to; what it returns is the batch.

        Raises:
            ConfigError: there is no such split or field, nothing is ragged, a sample alone exceeds
                `max_tokens`, `order` chooses from another number of samples, or a given dataset has a
                transform, which would not be run.
        """
        self._dataset = store if isinstance(store, FastDataset) and split in (None, store.split) else None
        if isinstance(store, FastDataset):
            read = _as_read_by(store, read)
            split, store = store.split if split is None else split, store.store
        self.store = store if isinstance(store, StoreReader) else StoreReader(store)
        self.batch_size = batch_size
        self.split = split
        self.drop_last = drop_last
        self.batch_sampler = None
        self.sampler = EpochSetter(self)
        self._seed = seed
        self._positions = split_positions(self.store, split)
        self._read = read or ReadRule()
        checked_fields(self.store, self._read.fields)
        num_samples = len(self._positions)
        if num_workers is not None and num_workers < 0:
            raise ConfigError(f"num_workers {num_workers}: at least 0 is needed, or None for what suits here")
        order = order or (Shuffled(num_samples, seed) if shuffle else Sequential(num_samples))
        check_choices(order, num_samples)
        lengths = None
        if length_buckets or max_tokens is not None:
            lengths = planned_lengths(
                self.store, self._positions, self._read.ragged, max_tokens, self._read.fields
            )
        self._order_seed = getattr(order, "seed", seed)
        self._plan = BatchPlan(order, batch_size, drop_last, lengths, max_tokens)
        num_threads = most_producers(count_cores()) if num_workers is None else num_workers
        self.prefetching = (num_threads, max(1, prefetch_factor))
        """Producers, and units of batches ahead of each; `adjust` changes them."""
        self._ranks = (rank, world_size)
        self._transfer = Transfer(device)
        self._kept = Kept(self._read)
        is_here = self._transfer.device.type == "cpu" and not self._read.on_device
        self._restores_early = restore and is_here
        encoded = [spec for spec in self.store.fields.values() if restore and spec.encoding != "none"]
        self._encoded = {spec.name: spec for spec in encoded if not (is_here and can_restore(spec))}
        """What is restored when a batch has arrived."""
        self._resumed: tuple[int | None, int | None] = (None, None)
        """Global batch and max_tokens of a loaded state."""
        self._loaded: LoaderState | None = None
        """A loaded state until an iterator begins with it."""
        self._made: tuple[tuple[Any, ...], Batches] | None = None
        self._next = (0, 0)
        """Epoch and batch at which the next iterator starts."""
        self._at = (0, 0)
        """Epoch and batch up to which the newest iterator has yielded."""
        self._augment = augment
        self._spare = Spare()
        self._gate = Gate()

    def __len__(self) -> int:
        """Batches of an epoch on this rank."""
        return self._batches().num_batches

    def __iter__(self) -> Iterator[Batch]:
        return Cursor(self)

    @property
    def dataset(self) -> FastDataset:
        """The split sample by sample: the dataset that was given, or one that reads as this loader does."""
        if self._dataset is None:
            read = self._read
            self._dataset = FastDataset(self.store, self.split, fields=read.fields, crc=read.crc, io=read.io)
        return self._dataset

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
            LoaderStateError: the state is of another store, split, order or seed, or is none that a loader has.
                That it does not suit the number of ranks is said by the first `next` if they are not known yet.
        """
        loaded = LoaderState.from_dict(state)
        loaded.check_fits(self._state(loaded.epoch, 0))
        resumed = (loaded.global_batch, loaded.max_tokens)
        rank, world = rank_and_world(*self._ranks)
        if self._plan.max_tokens is None:
            loaded.check_ranks(world)
        batches = self._plan.batches(rank, world, *resumed)
        if isinstance(batches, TokenBatches) and is_known(*self._ranks):
            batches.check_room(self._plan.max_tokens or 0)
        batch = batches.batch_after(loaded.epoch, loaded.samples)
        if batch is None:
            raise LoaderStateError(f"the saved state stands at sample {loaded.samples}, inside a batch")
        self._loaded, self._resumed = loaded, resumed
        done = batch >= batches.num_batches
        self._next = self._at = (loaded.epoch + 1, 0) if done else (loaded.epoch, batch)

    def _settle_loaded(self) -> None:
        """Called where the number of ranks is known at last: a loaded state suits it, or is refused."""
        if self._loaded is None:
            return
        rank, world = rank_and_world(*self._ranks)
        if self._plan.max_tokens is None:
            self._loaded.check_ranks(world)
        batches = self._batches()
        if isinstance(batches, TokenBatches):
            batches.check_room(self._plan.max_tokens or 0)
        elif rank == 0 and batches.global_batch != self.batch_size * world:
            _log.warning(
                "batches stay as they were saved, %d samples for all ranks together: up to %d on each of %d, "
                "and batch_size is %d. Start without the state for others",
                batches.global_batch,
                batches.largest,
                world,
                self.batch_size,
            )
        self._loaded = None

    def padding_share(self, epoch: int | None = None, *, without_buckets: bool = False) -> float:
        """Padded cells / all cells of the ragged fields in this rank's batches of an epoch, by the index alone.

        Args:
            epoch: the next one by default.
            without_buckets: of as many samples a batch, but taken as the order has them.
        """
        epoch = self._next[0] if epoch is None else epoch
        rows, sizes = batch_rows(self._batches(), epoch)
        if without_buckets:
            rows, sizes = plain_rows(self._plan.order, epoch, sizes)
        return padding_share(self.store, self._positions[rows], sizes, self._read.ragged, self._read.fields)

    @property
    def damaged(self) -> list[str]:
        """Keys of the damaged samples that `on_damage="skip"` has left out so far."""
        return self._kept.damage.keys

    @property
    def cache_stats(self) -> CacheStats:
        """What the cache of decompressed samples holds, and how often it served."""
        return self._kept.stats

    def adjust(self, *, num_workers: int | None = None, prefetch_factor: int | None = None) -> None:
        """Other numbers of producers and of batches ahead from the next unit on; the batches stay the same."""
        num_threads, depth = self.prefetching
        num_threads = num_threads if num_workers is None else num_workers
        self.prefetching = (num_threads, depth if prefetch_factor is None else max(1, prefetch_factor))

    def close(self) -> None:
        """End the producers; iterators that are still used start their own."""
        self._spare.put(None, None)
        self._kept.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_spare": Spare(), "_gate": Gate(), "_made": None, "sampler": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.sampler = EpochSetter(self)

    def _batches(self) -> Batches:
        key = (*rank_and_world(*self._ranks), *self._resumed)
        if self._made is None or self._made[0] != key:
            self._made = key, self._plan.batches(*key)
        return self._made[1]

    @cached_property
    def _keys_digest(self) -> str:
        return f"{crc32c_at(self.store.numbers['key_hash'], self._positions):08x}"

    def _state(self, epoch: int, batch: int) -> LoaderState:
        batches = self._batches()
        return LoaderState(
            order=batches.name if self._order_seed == self._seed else f"{batches.name} of {self._order_seed}",
            seed=self._seed,
            epoch=epoch,
            samples=batches.samples_after(epoch, batch),
            num_samples=batches.num_samples,
            global_batch=batches.global_batch,
            store=self.store.meta.content_hash,
            keys=self._keys_digest,
            max_tokens=batches.max_tokens,
        )

    def _stream(self, batches: Batches, epoch: int, batch: int) -> Prefetcher[Sent]:
        """A prefetcher that stands at this batch."""
        number = epoch * batches.num_batches + batch
        spare = self._spare.take((batches, os.getpid()))
        is_next = spare is not None and spare.next_number == number and spare.is_usable
        if is_next and isinstance(spare, Lane):
            # Nothing else can have changed, and to find that out takes 25 us of an epoch's first batch.
            if self._gate.is_warm():
                return spare
            self._gate.close()
        self._transfer.open()
        fetcher = self._kept.fetcher(
            self.store, self._positions, batches.largest, self._transfer, self._restores_early
        )
        is_here = self._transfer.device.type == "cpu"  # producers move batches elsewhere ahead of their use
        has_lane = is_here and self._gate.is_open(fetcher, len(self._positions))
        if spare is not None:
            if is_next and isinstance(spare, Lane) == has_lane:
                return spare
            spare.close()
        make = partial(BatchMaker, fetcher, batches, self._transfer, number + 1, self._seed)
        if has_lane:
            assert isinstance(fetcher, Fetcher)
            return Lane(make(Lane.unit_of(fetcher, self.prefetching[0])), fetcher, number, *self.prefetching)
        maker = make(sweep=self._kept.sweep(self.store, self._positions) if self.prefetching[0] else None)
        return Prefetcher(maker, number, *self.prefetching, maker.unit)


def _as_read_by(dataset: FastDataset, read: ReadRule | None) -> ReadRule:
    """A given rule, or the dataset's own; of its fields alone unless others are named.

    Raises:
        ConfigError: it has a transform, whatever rule is given.
    """
    own = dataset.read_rule
    if read is None:
        return own
    return read if read.fields is not None else replace(read, fields=own.fields)
