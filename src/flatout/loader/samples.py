"""SampleReader: positions of a split in, single samples out: one gather a fixed-shape field, then cut up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from flatout.loader.crc import CrcCheck
from flatout.loader.fetch import KEY, SCALE, ReadRule, restore
from flatout.loader.fixed import load_table, open_fixed
from flatout.loader.mount import Opened, open_as
from flatout.loader.places import Places
from flatout.loader.rows import FixedRows
from flatout.store import StoreReader, layout
from flatout.store.index import length_column
from flatout.types import Array, FieldSpec

Sample = dict[str, torch.Tensor]


class SampleReader:
    """Reads samples of one split, restored; the tensors are the caller's own."""

    def __init__(
        self, store: StoreReader, positions: Array, fields: Sequence[str], rule: ReadRule | None = None
    ) -> None:
        rule = rule or ReadRule()
        opened, places = open_as(store, rule.io), Places.of(store, positions)
        self._keys = torch.from_numpy(store.numbers["key_hash"][positions].view(np.int64))
        self._parts = {name: _open(opened, store.fields[name], places, rule) for name in fields}

    def read(self, positions: Array) -> list[Sample]:
        """One dict a position, in this order. The positions are inside the split."""
        columns = {name: part.read(positions) for name, part in self._parts.items()}
        columns[KEY] = list(self._keys[torch.from_numpy(positions)])
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def keep(self) -> None:
        """Keep decompressed copies of compressed fields from now on."""
        for part in self._parts.values():
            if isinstance(part, _Single):
                part.keep()


@dataclass
class _Gathered:
    """A fixed-shape field: all samples at once."""

    spec: FieldSpec
    rows: FixedRows
    check: CrcCheck | None
    scales: Array | None

    def read(self, positions: Array) -> list[torch.Tensor]:
        stored = np.empty((len(positions), *(n or 0 for n in self.spec.shape)), self.spec.stored_dtype)
        self.rows.gather(self.rows.look_up(positions), stored)
        if self.check is not None:
            self.check.require(positions, stored)
        scales = None if self.scales is None else self.scales[positions]
        return list(restored(self.spec, torch.from_numpy(stored), scales))


@dataclass
class _Single:
    """A ragged or compressed field: sample by sample."""

    spec: FieldSpec
    store: StoreReader
    places: Places
    check: CrcCheck | None
    scales: Array | None
    kept: list[Array] | None = None

    def read(self, positions: Array) -> list[torch.Tensor]:
        stored = [self._stored(at) for at in positions.tolist()]
        if self.check is not None and self.kept is None:
            self.check.require(positions, stored)
        found = []
        for at, sample in zip(positions.tolist(), stored, strict=True):
            scales = None if self.scales is None else self.scales[at : at + 1]
            found.append(restored(self.spec, torch.from_numpy(np.array(sample))[None], scales)[0])
        return found

    def keep(self) -> None:
        if self.spec.compression == "none":
            return  # its pages are the copy
        everything = np.arange(len(self.places))
        kept = [self._stored(at) for at in everything.tolist()]
        if self.check is not None:
            self.check.require(everything, kept)
        self.kept = kept

    def _stored(self, at: int) -> Array:
        if self.kept is not None:
            return self.kept[at]
        return self.store.shard(int(self.places.shards[at])).stored(self.spec.name, int(self.places.rows[at]))


def _open(opened: Opened, spec: FieldSpec, places: Places, rule: ReadRule) -> _Gathered | _Single:
    store = opened.store
    is_checked = rule.crc != "off" and 0 not in spec.shape  # an empty sample has no bytes to check
    check = CrcCheck(store, spec, places, always=rule.crc == "always") if is_checked else None
    scales = None
    if layout.is_quantised(spec):
        path = layout.scale_path(spec.name)
        scales = load_table([store.shard(number).tables[path] for number in store.announced()], places)
    if spec.is_ragged or spec.compression != "none":
        return _Single(spec, store, places, check, scales)
    rows = open_fixed(store, spec, places, opened.files)
    return _Gathered(spec, rows, check, scales)


def restored(spec: FieldSpec, stored: torch.Tensor, scales: Array | None) -> torch.Tensor:
    """(N, ...) as stored in, as numbers out: by the very function that batches are restored with."""
    if spec.encoding == "none":
        return stored
    batch = {"field": stored}  # not the field's own name: one that ends in the suffix would be lost
    if scales is not None:
        batch[f"field{SCALE}"] = torch.from_numpy(np.asarray(scales))
    return restore(batch, {"field": spec})["field"]


def mean_bytes(
    store: StoreReader, positions: Array, fields: Sequence[str] | None = None, *, is_restored: bool = False
) -> int:
    """Bytes of a sample, decompressed; of ragged fields their mean, from the index alone."""
    total = 0.0
    for spec in (store.fields[name] for name in (store.fields if fields is None else fields)):
        num_items: float = math.prod(n or 0 for n in spec.shape)
        if spec.is_ragged:
            lengths = store.numbers[length_column(spec.name)][positions]
            num_items = float(lengths.mean()) if len(lengths) else 0.0
        dtype = np.dtype(spec.dtype) if is_restored else spec.stored_dtype
        total += num_items * dtype.itemsize
    return math.ceil(total)
