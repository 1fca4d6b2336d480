"""Fetcher: positions within a split in, one batch of tensors out. Planned once, then one gather a field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flatout.errors import ConfigError
from flatout.loader.buffers import BufferPool, PinnedPool
from flatout.loader.crc import CrcCheck
from flatout.loader.fixed import FixedRows, LoadedRows, OneRange, load_table, open_fixed
from flatout.loader.mount import choose_io
from flatout.loader.places import Places
from flatout.loader.ragged import RaggedRows, RaggedRule
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
    """How samples are read and checked."""

    crc: str = "first"
    """`first`, `always` or `off`."""
    io: str = "auto"
    """`mmap`, `pread`, or `auto`: by where the store lies."""
    ragged: RaggedRule = RaggedRule()  # noqa: RUF009  frozen


@dataclass(frozen=True)
class _Fixed:
    """One fixed-shape part of a batch."""

    rows: FixedRows
    pool: BufferPool
    check: CrcCheck | None


class Fetcher:
    """Reads batches of one split of one store. Several threads may call `fetch` at once."""

    def __init__(
        self, store: StoreReader, positions: Array, batch_size: int, rule: ReadRule, *, is_pinned: bool = False
    ) -> None:
        lengths = {f"{name}{LENGTH}" for name, spec in store.fields.items() if spec.is_ragged}
        if clash := {KEY, VALID, *lengths} & set(store.fields):
            raise ConfigError(f"a field called '{clash.pop()}' clashes with what a batch always has; rename it")
        self.store = store
        self._batch_size = batch_size
        self._make_pool = PinnedPool if is_pinned else BufferPool
        io = choose_io(rule.io, store.folder)
        self._places = Places.of(store, positions)
        self._fixed: dict[str, _Fixed] = {}
        self._ragged: dict[str, RaggedRows] = {}
        for name, spec in store.fields.items():
            always = rule.crc == "always"
            check = None if rule.crc == "off" else CrcCheck(store, spec, self._places, always=always)
            if spec.is_ragged or spec.compression != "none":
                self._ragged[name] = RaggedRows(store, spec, self._places, rule.ragged, check)
                continue
            self._add(name, open_fixed(store, spec, self._places, io), spec.stored_dtype, _row(spec), check)
            if layout.is_quantised(spec):
                self._add(f"{name}{SCALE}", self._scales(spec), np.dtype("<f4"), (2,))
        keys = LoadedRows(store.numbers["key_hash"][positions].view(np.int64))
        self._add(KEY, keys, np.dtype(np.int64), ())

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one sample's fixed fields, and of a ragged one's mean length."""
        fixed = sum(part.pool.row_bytes for part in self._fixed.values())
        return fixed + sum(ragged.mean_bytes for ragged in self._ragged.values())

    def fetch(self, positions: Array) -> dict[str, torch.Tensor]:
        """One batch: a tensor a field, in the order of `positions`.

        Raises:
            IndexError: a position lies outside the split: NumPy's clip mode would serve a wrong sample.
            StoreCorruptError: a sample's bytes do not match their checksum.
        """
        if len(positions) and (positions.min() < 0 or positions.max() >= len(self._places)):
            raise IndexError(f"positions {positions.min()}..{positions.max()} of {len(self._places)} samples")
        batch: dict[str, torch.Tensor] = {}
        for name, part in self._fixed.items():
            buffer = part.pool.take()
            part.rows.gather(positions, buffer)
            if part.check is not None:
                part.check.require(positions, buffer)
            batch[name] = part.pool.hand_out(buffer, len(positions))
        for name, ragged in self._ragged.items():
            batch[name], lengths = ragged.gather(positions)
            if lengths is not None:
                batch[f"{name}{LENGTH}"] = lengths
        return batch

    def announce(self, positions: Array) -> None:
        """Tell the system which rows are wanted soon, where that helps."""
        for part in self._fixed.values():
            if isinstance(part.rows, OneRange):
                part.rows.announce(positions)

    def _add(
        self,
        name: str,
        rows: FixedRows,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        check: CrcCheck | None = None,
    ) -> None:
        check = check if math.prod(shape) else None  # an empty sample has no bytes to check
        self._fixed[name] = _Fixed(rows, self._make_pool((self._batch_size, *shape), dtype), check)

    def _scales(self, spec: FieldSpec) -> LoadedRows:
        path = layout.scale_path(spec.name)
        shards = range(len(self.store.meta.shards))
        return LoadedRows(load_table([self.store.shard(n).tables[path] for n in shards], self._places))


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
