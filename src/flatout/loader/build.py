"""Builders: one split's loader from the config, over a store (fast) or over the raw files (standard)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from flatout.config import Config, LoaderSettings
from flatout.config.loader import SECTION_OF
from flatout.errors import ConfigError
from flatout.loader.batching import loader_arguments, ragged_notes, ragged_rule, with_mean_batch
from flatout.loader.cache import CacheRule
from flatout.loader.fetch import ReadRule
from flatout.loader.loader import FastDataLoader
from flatout.loader.local import ShardLocal
from flatout.loader.machine import Machine
from flatout.loader.memory import BatchesAhead, check_memory
from flatout.loader.mount import open_as
from flatout.loader.notes import Change
from flatout.loader.order import Order
from flatout.loader.ordering import is_shuffled as is_shuffled
from flatout.loader.ordering import order_of, stored_column
from flatout.loader.places import Places
from flatout.loader.platform import Decision, decide
from flatout.loader.preload import preload
from flatout.loader.ranks import rank_and_world
from flatout.loader.raw import RawSource
from flatout.loader.resident import check_resident, free_bytes
from flatout.loader.samples import mean_bytes
from flatout.loader.standard import StandardDataset
from flatout.loader.tiers import (
    arrival_device,
    batches_on_device,
    cache_bytes,
    cache_rule,
    training_device,
)
from flatout.loader.transfer import Augment
from flatout.store import StoreReader
from flatout.types import Array

Loader = FastDataLoader | DataLoader[Any]


class Builder(Protocol):
    """Makes the loaders of one config."""

    notes: list[str]
    """What was chosen or has no effect, in plain words."""
    augment: Augment | None
    """What batches of the training split go through."""

    @property
    def splits(self) -> list[str]:
        """Names of the splits there are."""

    def build(self, split: str) -> Loader | None:
        """The loader of a split; None if it has no samples."""


class FastBuilder:
    """Loaders that read a store."""

    def __init__(self, config: Config, store: StoreReader, machine: Machine) -> None:
        self.notes: list[str] = []
        self.augment: Augment | None = None
        self._config = config
        self._store = store
        self._machine = machine
        self._device_bytes = 0
        """What the splits built so far will take of the device's memory."""

    @property
    def splits(self) -> list[str]:
        return list(self._store.meta.splits)

    def build(self, split: str) -> FastDataLoader | None:
        config, settings = self._config, settings_for(self._config, split)
        if split not in self.splits or not len(positions := self._store.positions(split)):
            return None
        self._preload(split, positions)
        device = self._place(split, positions)
        # Producers restore what stays in host memory; elsewhere batches wait as they are stored.
        sample_bytes = mean_bytes(self._store, positions, is_restored=device is None)
        sized = with_mean_batch(settings, self._store, positions)
        decision = _decide(sized, self._machine, sample_bytes, is_fast=True)
        if device is not None and self._machine.gpu is not None and not config.cache_on_device:
            batch_bytes = sized.batch_size * sample_bytes
            decision = batches_on_device(decision, batch_bytes, self._machine.gpu, self.notes)
        self.notes += [*decision.notes, *ragged_notes(settings)]
        return FastDataLoader(
            self._store,
            settings.batch_size,
            split=split,
            order=self._order(split, settings, positions),
            seed=config.seed,
            drop_last=settings.drop_last,
            num_workers=decision.num_workers,
            prefetch_factor=decision.prefetch_factor or 1,
            read=self._read_rule(settings, positions),
            device=device,
            length_buckets=settings.length_buckets,
            max_tokens=settings.max_tokens,
            augment=self.augment if split == "train" else None,
        )

    def _read_rule(self, settings: LoaderSettings, positions: Array) -> ReadRule:
        config = self._config
        return ReadRule(
            crc=config.crc,
            io=config.io,
            ragged=ragged_rule(settings),
            on_damage=config.on_damage,
            cache=self._cache(positions),
            on_device=config.cache_on_device,
        )

    def _cache(self, positions: Array) -> CacheRule | None:
        rule = cache_rule(self._config, self._store, positions, self._machine, self.notes)
        if rule is not None and not self._config.cache_on_device:
            self._take(cache_bytes(rule, self._store, positions))
        return rule

    def _place(self, split: str, positions: Array) -> torch.device | None:
        """Where the batches arrive; None: in host memory."""
        if self._config.cache_on_device:
            return self._device(split, positions)
        return arrival_device(self._config, self._machine, self.notes)

    def _device(self, split: str, positions: Array) -> torch.device:
        """Where the split will be held; refused now rather than at the first batch."""
        device = training_device(self._config, self._machine, self.notes)
        self._device_bytes += mean_bytes(self._store, positions) * len(positions)
        free = free_bytes(device, self._machine)
        what = f"cache_on_device of split '{split}'"
        check_resident(self._store.fields, self._device_bytes, free, device, what)
        return device

    def _order(self, split: str, settings: LoaderSettings, positions: Array) -> Order:
        store = self._store
        if self._config.order == "shard_local" and is_shuffled(settings, split):
            return ShardLocal.of(Places.of(store, positions).shards, self._config.seed)
        values = partial(stored_column, store, positions=positions)
        return order_of(self._config, settings, split, store.fields, len(positions), values)

    def _preload(self, split: str, positions: Array) -> None:
        if (setting := preload_setting(self._config, split)) is not None:
            store = open_as(self._store, self._config.io).store
            done = preload(store, positions, self._machine, f"{setting} of split '{split}'")
            self._take(done)

    def _take(self, num_bytes: int) -> None:
        """The next split must fit beside this one."""
        self._machine = replace(self._machine, free_bytes=self._machine.free_bytes - num_bytes)


class StandardBuilder:
    """Ordinary DataLoaders that decode raw files."""

    def __init__(self, config: Config, raw: RawSource, machine: Machine) -> None:
        self.notes: list[str] = []
        self.augment: Augment | None = None
        self._config = config
        self._raw = raw
        self._machine = machine

    @property
    def splits(self) -> list[str]:
        return self._raw.splits

    def build(self, split: str) -> DataLoader[Any] | None:
        config, settings = self._config, settings_for(self._config, split)
        if not len(self._raw.numbering(split)):
            return None
        if self.augment is not None and split == "train":
            raise ConfigError(
                "augment: only the fast loader hands its batches over, and there is no store to read. "
                "'flatout prepare' makes one; or augment the batches of the standard path yourself"
            )
        dataset = self._dataset(split)
        is_kept = preload_setting(config, split) is not None
        decision = _decide(settings, self._machine, dataset.sample_bytes, is_fast=False, all_preloaded=is_kept)
        self.notes += [*decision.notes, *ragged_notes(settings)]
        if config.order == "shard_local":
            self.notes.append(Change("order: raw files have no shards; they are shuffled over all samples"))
        self.notes += [
            Change(f"{name}: only the fast loader does that; it has no effect") for name in fast_only(config)
        ]
        order = order_of(config, settings, split, dataset.fields, len(dataset), dataset.values)
        return DataLoader(
            **loader_arguments(dataset, order, settings, config.seed, self._raw.store),
            generator=torch.Generator().manual_seed(config.seed),
            num_workers=decision.num_workers,
            prefetch_factor=decision.prefetch_factor,
            persistent_workers=decision.persistent_workers,
            pin_memory=decision.pin_memory,
            multiprocessing_context=decision.multiprocessing_context,
        )

    def _dataset(self, split: str) -> StandardDataset:
        is_kept = preload_setting(self._config, split) is not None
        dataset = StandardDataset(
            self._raw, split, cache_in_memory=is_kept, is_collated=True, machine=self._machine
        )
        if is_kept:
            done = dataset.sample_bytes * len(dataset)
            self._machine = replace(self._machine, free_bytes=self._machine.free_bytes - done)
        return dataset


def settings_for(config: Config, split: str) -> LoaderSettings:
    """The settings of one split's loader; what was given, and not only the default, is in its fields set."""
    section = SECTION_OF.get(split)
    given = config.model_fields_set | (getattr(config, section).model_fields_set if section else set())
    values = config.loader_for(split)
    return LoaderSettings.model_construct(_fields_set=given & values.model_fields_set, **dict(values))


def preload_setting(config: Config, split: str) -> str | None:
    """The setting that asks for this split to be held in memory, if there is one."""
    if config.cache_in_memory:
        return "cache_in_memory"
    name = f"preload_{split}_data"
    return f"cache_config.{name}" if getattr(config.cache_config, name, False) else None


def fast_only(config: Config) -> list[str]:
    """Settings that were given and that raw files cannot follow."""
    asked = {"cache_on_device": config.cache_on_device, "on_damage": config.on_damage == "skip"}
    return [name for name, is_asked in asked.items() if is_asked]


def _decide(
    settings: LoaderSettings, machine: Machine, sample_bytes: int, *, is_fast: bool, all_preloaded: bool = False
) -> Decision:
    """Decide, and refuse what does not fit into memory."""
    decision = decide(
        settings,
        machine=machine,
        is_fast=is_fast,
        all_preloaded=all_preloaded,
        sample_bytes=sample_bytes,
        is_distributed=rank_and_world()[1] > 1,
    )
    ahead = BatchesAhead(decision.num_workers, decision.prefetch_factor, settings.batch_size, sample_bytes)
    check_memory(ahead, machine, is_fast=is_fast)
    return decision
