"""Fetcher: positions within a split in, one batch of tensors out. Planned once, then one gather a field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flatout.loader.buffers import BufferPool
from flatout.loader.fixed import FixedRows, LoadedRows, Places, load_table, open_fixed
from flatout.loader.ragged import RaggedRows, open_ragged
from flatout.store import StoreReader, layout
from flatout.types import Array, FieldSpec

KEY = "key"
VALID = "valid"
LENGTH = "_length"
SCALE = "_scale"
"""Suffixes of what accompanies a field: lengths of ragged samples, scale and offset of quantised ones."""


@dataclass(frozen=True)
class RaggedRule:
    """How ragged samples become rectangular."""

    max_length: int | None = None
    """Longest kept; the rest is cut."""
    crop: str = "head"
    """Which part is kept: head, tail or random."""
    multiple: int = 1
    """Padded lengths are multiples of this."""
    to_max: bool = False
    """Pad every batch to `max_length` instead of to its longest sample."""


class Fetcher:
    """Reads batches of one split of one store. Several threads may call `fetch` at once."""

    def __init__(
        self, store: StoreReader, positions: Array, batch_size: int, rule: RaggedRule | None = None
    ) -> None:
        self.store = store
        numbers = store.numbers
        self._places = Places(numbers["shard"][positions], numbers["row"][positions])
        self._keys = LoadedRows(numbers["key_hash"][positions].view(np.int64))
        self._num_samples = len(positions)
        self._fixed: dict[str, tuple[FixedRows, BufferPool]] = {}
        self._ragged: dict[str, RaggedRows] = {}
        for name, spec in store.fields.items():
            if spec.is_ragged or spec.compression != "none":
                self._ragged[name] = open_ragged(store, spec, self._places, rule or RaggedRule())
            else:
                self._add(
                    name, open_fixed(store, spec, self._places), _row(spec), spec.stored_dtype, batch_size
                )
            if layout.is_quantised(spec):
                self._add(f"{name}{SCALE}", self._scales(spec), (2,), np.dtype("<f4"), batch_size)
        self._add(KEY, self._keys, (), np.dtype(np.int64), batch_size)

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one sample's fixed fields, and of a ragged one's mean length."""
        return sum(pool.row_bytes for _, pool in self._fixed.values()) + sum(
            ragged.mean_bytes for ragged in self._ragged.values()
        )

    def fetch(self, positions: Array) -> dict[str, torch.Tensor]:
        """One batch: a tensor a field, in the order of `positions`.

        Raises:
            IndexError: a position lies outside the split: NumPy's clip mode would serve a wrong sample.
        """
        if len(positions) and (positions.min() < 0 or positions.max() >= self._num_samples):
            raise IndexError(f"positions {positions.min()}..{positions.max()} of {self._num_samples} samples")
        batch: dict[str, torch.Tensor] = {}
        for name, (rows, pool) in self._fixed.items():
            buffer = pool.take()
            rows.gather(positions, buffer)
            batch[name] = pool.hand_out(buffer, len(positions))
        for name, ragged in self._ragged.items():
            batch[name], lengths = ragged.gather(positions)
            if lengths is not None:
                batch[f"{name}{LENGTH}"] = lengths
        return batch

    def _add(
        self, name: str, rows: FixedRows, shape: tuple[int, ...], dtype: np.dtype[Any], batch_size: int
    ) -> None:
        self._fixed[name] = rows, BufferPool((batch_size, *shape), dtype)

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
        dtype = getattr(torch, spec.dtype)
        values = restored[name]
        if spec.encoding == "bfloat16":
            values = values.view(torch.bfloat16)
        if layout.is_quantised(spec):
            scale = batch[f"{name}{SCALE}"]
            shape = (-1, *(1,) * (values.dim() - 1))
            values = torch.addcmul(scale[:, 1].view(shape), values.to(torch.float32), scale[:, 0].view(shape))
        restored[name] = values.to(dtype)
    return restored
