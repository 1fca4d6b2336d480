"""What is in a store: counts, shapes, ranges, bytes, and the memory it takes when cached."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flatout.store.extent import compressed_bytes, rows_in_shards, shapes_in_store, spread, values_in_store
from flatout.store.index import length_column
from flatout.store.reader import StoreReader
from flatout.store.receipt import BadRow
from flatout.types import Array, FieldSpec


@dataclass(frozen=True)
class FieldSummary:
    """One field in numbers."""

    name: str
    kind: str
    dtype: str
    shape: list[int | None]
    encoding: str
    compression: str
    num_bytes: int
    """Bytes of the values as stored, before compression."""
    disk_bytes: int | None = None
    """Bytes of the values on disk, after compression; None: not made yet."""
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    num_measured: int = 0
    """Samples that low, high, mean and the two counts below were taken from."""
    num_nan: int = 0
    num_infinite: int = 0
    lengths: Mapping[str, int] | None = None
    """Shortest, median and longest sample of a field of which one axis varies, in steps along it."""
    shapes: Sequence[tuple[int, int]] | None = None
    """Smallest and largest size of each axis of a ragged field."""
    classes: Mapping[str, Mapping[str, int]] | None = None
    """Samples by class and split."""


@dataclass(frozen=True)
class Summary:
    """A store or a manifest in numbers."""

    place: str
    num_samples: int | None
    """Of a manifest that was not decoded whole: as many as are expected. None: no row could be decoded."""
    splits: Mapping[str, int]
    fields: Sequence[FieldSummary]
    num_shards: int = 0
    disk_bytes: int = 0
    """Bytes of the shards, or of the source files (of the manifest, where it holds the values itself)."""
    memory_bytes: int = 0
    """Bytes of all samples in memory, restored: what caching them takes."""
    num_groups: int = 0
    num_rows: int | None = None
    """Rows of the manifest; None: a store."""
    num_decoded: int | None = None
    """Rows of the manifest that were decoded to tell this; None: a store."""
    num_bad: int = 0
    """Rows in quarantine; of a manifest those found: every file was looked for, `num_decoded` were decoded."""
    bad: Sequence[BadRow] = ()
    refusal: str = ""
    """Why a prepare of this manifest would stop."""
    notes: Sequence[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarise_store(folder: Path) -> Summary:
    """Read a store's index and, evenly spread, its values.

    Raises:
        StoreMissingError, StoreVersionError, StoreCorruptError: it cannot be read.
    """
    store = StoreReader(folder)
    counts = np.bincount(store.numbers["split"], minlength=len(store.meta.splits))
    fields = [_field_of_store(store, spec) for spec in store.meta.fields]
    return Summary(
        place=str(folder),
        num_samples=len(store),
        splits=dict(zip(store.meta.splits, counts.tolist(), strict=True)),
        fields=fields,
        num_shards=len(store.meta.shards),
        disk_bytes=sum(shard.size for shard in store.meta.shards),
        memory_bytes=sum(restored_bytes(store, spec) for spec in store.meta.fields),
        num_groups=len(np.unique(store.numbers["group"])),
        num_bad=store.meta.num_bad,
    )


def _field_of_store(store: StoreReader, spec: FieldSpec) -> FieldSummary:
    num_bytes = _num_items(store, spec) * spec.stored_dtype.itemsize
    return FieldSummary(
        **head_of(spec),
        num_bytes=num_bytes,
        disk_bytes=num_bytes if spec.compression == "none" else compressed_bytes(store, spec),
        classes=_classes_of_store(store, spec),
        **(spread(spec, shapes_in_store(store, spec)) if spec.is_ragged else {}),
        **values_in_store(store, spec, num_bytes),
    )


def _classes_of_store(store: StoreReader, spec: FieldSpec) -> dict[str, dict[str, int]] | None:
    if spec.kind != "label" or spec.shape:
        return None
    labels = np.empty(len(store), np.int64)
    for shard, mine, rows in rows_in_shards(store):
        labels[mine] = shard.data(spec.name)[rows]
    return _by_class(labels, spec, store.numbers["split"], store.meta.splits)


def _by_class(
    labels: Array, spec: FieldSpec, splits: Array, split_names: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Samples of each class that has any, by split."""
    found, codes = np.unique(labels, return_inverse=True)
    counts = np.bincount(codes * len(split_names) + splits, minlength=len(found) * len(split_names))
    classes, counted = dict(enumerate(spec.classes or ())), {}
    for label, row in zip(found.tolist(), counts.reshape(len(found), len(split_names)).tolist(), strict=True):
        name = classes.get(label, str(label))
        counted[name] = {split: num for split, num in zip(split_names, row, strict=True) if num}
    return dict(sorted(counted.items()))


def head_of(spec: FieldSpec) -> dict[str, Any]:
    """What every summary of a field begins with."""
    return {
        "name": spec.name,
        "kind": spec.kind,
        "dtype": spec.dtype,
        "shape": list(spec.shape),
        "encoding": spec.encoding,
        "compression": spec.compression,
    }


def restored_bytes(store: StoreReader, spec: FieldSpec) -> int:
    """Bytes of a field's samples in memory, encodings and compression undone."""
    return _num_items(store, spec) * np.dtype(spec.dtype).itemsize


def _num_items(store: StoreReader, spec: FieldSpec) -> int:
    if spec.is_ragged:
        return int(store.numbers[length_column(spec.name)].sum())
    return len(store) * math.prod(n or 0 for n in spec.shape)
