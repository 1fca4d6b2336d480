"""Fetcher: positions within a split in, one batch of tensors out. Planned once, then one gather a field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from flatout.errors import ConfigError, LoaderError
from flatout.loader.buffers import BufferPool, PinnedPool
from flatout.loader.cache import CacheRule, SampleCache
from flatout.loader.crc import CrcCheck
from flatout.loader.damage import Batch, DamageLog, Skipper
from flatout.loader.fixed import FixedRows, LoadedRows, OneRange, load_table, open_fixed
from flatout.loader.lengths import RaggedRule
from flatout.loader.mount import open_as
from flatout.loader.places import Places
from flatout.loader.ragged import RaggedRows
from flatout.loader.stored import StoredRows, StoredSamples
from flatout.store import StoreReader, layout
from flatout.types import Array, FieldSpec

KEY = "key"
VALID = "valid"
LENGTH = "_length"
"""Suffix of the lengths that accompany a ragged field."""
SCALE = "/scale"
"""Suffix of scale and offset of a quantised field until it is restored; no field's name has a slash."""


@dataclass(frozen=True)
class ReadRule:
    """How samples are read, checked and kept."""

    crc: str = "first"
    """`first`, `always` or `off`."""
    io: str = "auto"
    """`mmap`, `pread`, or `auto`: by where the store lies."""
    ragged: RaggedRule = RaggedRule()  # noqa: RUF009  frozen
    on_damage: str = "raise"
    """`raise`, or `skip`: a good sample stands in for a damaged one, and `valid` is false for it."""
    cache: CacheRule | None = None
    """How many decompressed samples of compressed fields are kept; None: none."""
    on_device: bool = False
    """Hold the whole split in the device's memory."""
    fields: tuple[str, ...] | None = None
    """Which fields a loader's batches have; None: all."""

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} '{getattr(self, name)}': wanted one of {', '.join(known)}")


_CHOICES = {
    "crc": ("first", "always", "off"),
    "io": ("auto", "mmap", "pread"),
    "on_damage": ("raise", "skip"),
}


@dataclass(frozen=True)
class _Fixed:
    """One fixed-shape part of a batch."""

    rows: FixedRows
    pool: BufferPool
    check: CrcCheck | None


class Fetcher:
    """Reads batches of one split of one store. Several threads may call `fetch` at once.

    Args:
        caches: where decompressed samples are kept, by field.
        damage: where damaged samples are noted; only with `on_damage="skip"`.
    """

    def __init__(
        self,
        store: StoreReader,
        positions: Array,
        batch_size: int,
        rule: ReadRule,
        *,
        is_pinned: bool = False,
        caches: Mapping[str, SampleCache] | None = None,
        damage: DamageLog | None = None,
    ) -> None:
        lengths = {f"{name}{LENGTH}" for name, spec in store.fields.items() if spec.is_ragged}
        if clash := {KEY, VALID, *lengths} & set(store.fields):
            raise ConfigError(f"a field called '{clash.pop()}' clashes with what a batch always has; rename it")
        self.batch_size = batch_size
        self.skips = rule.on_damage == "skip"
        self.store, self._files = open_as(store, rule.io)
        self._make_pool = PinnedPool if is_pinned else BufferPool
        self._caches = caches or {}
        self._damage = damage or DamageLog()
        self._rule = rule
        self._places = Places.of(store, positions)
        self._fixed: dict[str, _Fixed] = {}
        self._ragged: dict[str, RaggedRows] = {}
        for name in store.fields if rule.fields is None else rule.fields:
            self._open(store.fields[name])
        keys = LoadedRows(store.numbers["key_hash"][positions].view(np.int64))
        self._add(KEY, keys, np.dtype(np.int64), ())

    @property
    def num_samples(self) -> int:
        return len(self._places)

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one sample's fixed fields, and of a ragged one's mean length."""
        fixed = sum(part.pool.row_bytes for part in self._fixed.values())
        return fixed + sum(ragged.mean_bytes for ragged in self._ragged.values())

    def fetch(self, positions: Array, crop_seed: int = 0) -> Batch:
        """One batch: a tensor a field, in the order of `positions`; with `skip` also `valid`.

        Args:
            crop_seed: what random crops of this epoch are drawn from.

        Raises:
            IndexError: a position lies outside the split: NumPy's clip mode would serve a wrong sample.
            StoreCorruptError: a sample's bytes do not match their checksum.
            LoaderError: they cannot be read (`pread` only); naming the sample.
        """
        if len(positions) and (positions.min() < 0 or positions.max() >= len(self._places)):
            raise IndexError(f"positions {positions.min()}..{positions.max()} of {len(self._places)} samples")
        gather = partial(self._gather, crop_seed=crop_seed)
        if self.skips:
            skipper = Skipper(gather, len(self._places), self._note, self._damage.among)
            batch, is_own = skipper.fetch(positions)
            batch[VALID] = torch.from_numpy(is_own)
            return batch
        try:
            return gather(positions)
        except LoaderError as error:
            raise self._named(error, positions) from error

    def announce(self, positions: Array) -> None:
        """Tell the system which rows are wanted soon, where that helps."""
        for part in self._fixed.values():
            if isinstance(part.rows, OneRange):
                part.rows.announce(positions)
        for ragged in self._ragged.values():
            ragged.announce(positions)

    def _gather(self, positions: Array, crop_seed: int = 0) -> Batch:
        batch: Batch = {}
        for name, part in self._fixed.items():
            buffer = part.pool.take()
            part.rows.gather(positions, buffer)
            if part.check is not None:
                part.check.require(positions, buffer)
            batch[name] = part.pool.hand_out(buffer, len(positions))
        for name, ragged in self._ragged.items():
            batch[name], lengths = ragged.gather(positions, crop_seed)
            if lengths is not None:
                batch[f"{name}{LENGTH}"] = lengths
        return batch

    def _open(self, spec: FieldSpec) -> None:
        """Plan how one field is gathered."""
        store, places, rule = self.store, self._places, self._rule
        check = None if rule.crc == "off" else CrcCheck(store, spec, places, always=rule.crc == "always")
        cache = self._caches.get(spec.name)
        if spec.is_ragged:
            io = "mmap" if self._files is None else "pread"
            self._ragged[spec.name] = RaggedRows(store, spec, places, rule.ragged, check, io, cache)
            return
        rows: FixedRows = StoredRows(StoredSamples(store, spec.name, places, cache))
        if spec.compression == "none":
            rows = open_fixed(store, spec, places, self._files)
        self._add(spec.name, rows, spec.stored_dtype, _row(spec), check)
        if layout.is_quantised(spec):
            self._add(f"{spec.name}{SCALE}", self._scales(spec), np.dtype("<f4"), (2,))

    def _add(
        self,
        name: str,
        rows: FixedRows,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        check: CrcCheck | None = None,
    ) -> None:
        check = check if math.prod(shape) else None  # an empty sample has no bytes to check
        self._fixed[name] = _Fixed(rows, self._make_pool((self.batch_size, *shape), dtype), check)

    def _scales(self, spec: FieldSpec) -> LoadedRows:
        path = layout.scale_path(spec.name)
        shards = range(len(self.store.meta.shards))
        return LoadedRows(load_table([self.store.shard(n).tables[path] for n in shards], self._places))

    def _note(self, position: int, error: Exception) -> None:
        self._damage.add(position, self._places.key_of(self.store, position), error)

    def _named(self, error: LoaderError, positions: Array) -> LoaderError:
        """The error of the first sample that cannot be read, with its key."""
        for position in positions.tolist():
            try:
                self._gather(np.array([position]))
            except LoaderError as own:
                return LoaderError(f"sample '{self._places.key_of(self.store, position)}': {own}")
        return error


def _row(spec: FieldSpec) -> tuple[int, ...]:
    return tuple(n or 0 for n in spec.shape)


def restore(batch: Mapping[str, torch.Tensor], fields: Mapping[str, FieldSpec]) -> dict[str, torch.Tensor]:
    """Encoded fields as numbers again, on whatever device the batch is."""
    restored = {name: value for name, value in batch.items() if not name.endswith(SCALE)}
    for name, spec in fields.items():
        if spec.encoding == "none" or name not in restored:
            continue
        values = restored[name]
        if spec.encoding == "bfloat16":
            values = values.view(torch.bfloat16)
        scale = batch.get(f"{name}{SCALE}")
        if scale is not None:
            shape = (-1, *(1,) * (values.dim() - 1))
            values = torch.addcmul(scale[:, 1].view(shape), values.to(torch.float32), scale[:, 0].view(shape))
        restored[name] = values.to(getattr(torch, spec.dtype))
    return restored
