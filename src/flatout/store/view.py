"""`preprocessed_data.h5`: the store as other tools open it. flatout itself never reads through it.

Few shards: virtual datasets, rows in index order. Many shards: external links, one group a shard, because a
virtual dataset silently gives fill values for a missing shard or when too many files are open, where a
link raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from flatout.store import layout
from flatout.store.companions import replace_companion
from flatout.store.index import length_column
from flatout.store.metadata import SHARD_FOLDER, ShardMeta
from flatout.store.shard_reader import ShardReader
from flatout.types import Array, FieldSpec

VIEW = "preprocessed_data.h5"
MAX_VIRTUAL_SHARDS = 200
MAX_RUNS = 5000
"""Runs of neighbouring rows that a virtual dataset is still opened quickly with."""


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of one shard that stand next to each other in the view, too."""

    at: int
    shard: int
    row: int
    count: int


def write_view(
    folder: Path,
    fields: Sequence[FieldSpec],
    shards: Sequence[ShardMeta],
    samples: Any,
    splits: Sequence[str],
) -> None:
    """Build the view in memory and swap it in."""
    image = view_image(fields, open_shards(folder, fields, shards), samples, splits)
    replace_companion(folder, VIEW, image)


def open_shards(folder: Path, fields: Sequence[FieldSpec], shards: Sequence[ShardMeta]) -> list[ShardReader]:
    """What a view reads of the shards it names."""
    return [ShardReader(folder / SHARD_FOLDER / meta.file, meta, fields) for meta in shards]


def view_image(
    fields: Sequence[FieldSpec], readers: Sequence[ShardReader], samples: Any, splits: Sequence[str]
) -> bytes:
    """The view's bytes; no file is opened or written for them."""
    runs = list(_runs(samples["shard"].to_numpy(), samples["row"].to_numpy()))
    # The core driver keeps all of it in memory; without the flush its image does not open.
    with h5py.File(VIEW, "w", driver="core", backing_store=False) as file:
        file.attrs["format"] = "flatout-view"
        if len(readers) <= MAX_VIRTUAL_SHARDS and len(runs) <= MAX_RUNS:
            for spec in fields:
                build = _ragged if spec.is_ragged else _fixed
                build(file, spec, readers, samples, runs)
                if not spec.is_ragged and layout.is_quantised(spec):
                    scales = _gathered(layout.scale_path(spec.name), readers, runs)
                    file[free_name(f"{spec.name}_scale", fields)] = scales
        else:
            for number, reader in enumerate(readers):
                file[f"shards/{number:06d}"] = h5py.ExternalLink(_name(reader), "/")
        _samples(file, fields, samples, splits)
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


def _runs(shards: Array, rows: Array) -> Iterator[Run]:
    """Each run of rows that follow one another in one shard."""
    if not len(shards):
        return
    breaks = np.flatnonzero((np.diff(shards) != 0) | (np.diff(rows) != 1)) + 1
    for start, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(shards)], strict=True):
        yield Run(start, int(shards[start]), int(rows[start]), stop - start)


def _fixed(
    file: Any, spec: FieldSpec, readers: Sequence[ShardReader], samples: Any, runs: Sequence[Run]
) -> None:
    shape = tuple(n or 0 for n in spec.shape)
    virtual = h5py.VirtualLayout((samples.num_rows, *shape), spec.stored_dtype)
    for run in runs:
        reader = readers[run.shard]
        source = h5py.VirtualSource(_name(reader), spec.name, (len(reader), *shape))
        virtual[run.at : run.at + run.count] = source[run.row : run.row + run.count]
    file.create_virtual_dataset(spec.name, virtual, fillvalue=_fill(spec))
    _describe(file[spec.name], spec)


def _ragged(
    file: Any, spec: FieldSpec, readers: Sequence[ShardReader], samples: Any, runs: Sequence[Run]
) -> None:
    """Values are virtual; `offsets` and `shapes` are real and count over the whole view."""
    lengths = samples[length_column(spec.name)].to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    group = file.create_group(spec.name)
    group["offsets"] = offsets
    if layout.has_shapes(spec):
        group["shapes"] = _gathered(layout.shapes_path(spec.name), readers, runs)
    if layout.is_quantised(spec):
        group["scale"] = _gathered(layout.scale_path(spec.name), readers, runs)
    _describe(group, spec)
    if spec.compression != "none":  # padded chunks have no flat place; `export --to hdf5` writes a plain file
        for number, reader in enumerate(readers):
            group[f"shards/{number:06d}"] = h5py.ExternalLink(_name(reader), layout.data_path(spec))
        return
    virtual = h5py.VirtualLayout((int(offsets[-1]),), spec.stored_dtype)
    for run in runs:
        low, high = int(offsets[run.at]), int(offsets[run.at + run.count])
        if high > low:
            in_shard = readers[run.shard].tables[layout.offsets_path(spec.name)]
            source = h5py.VirtualSource(_name(readers[run.shard]), layout.data_path(spec), (int(in_shard[-1]),))
            start = int(in_shard[run.row])
            virtual[low:high] = source[start : start + high - low]
    group.create_virtual_dataset("values", virtual, fillvalue=_fill(spec))


def _samples(file: Any, fields: Sequence[FieldSpec], samples: Any, splits: Sequence[str]) -> None:
    """What tells the samples apart: keys and split names, as ordinary HDF5 strings."""
    codes = np.array([split.encode() for split in splits] or [b""])
    texts = {"key": _fixed_texts(samples["key"]), "split": codes[samples["split"].to_numpy()]}
    for name, array in texts.items():
        kind = h5py.string_dtype(length=array.dtype.itemsize if array.dtype.kind == "S" else None)
        file.create_dataset(free_name(name, fields), data=array.astype(kind, copy=False))


def _fixed_texts(texts: pa.ChunkedArray) -> Array:
    """All in as many bytes as the longest has, unless that is more than they take one by one.

    HDF5's strings of any length take 0.4 us and 28 bytes each, at the end of a prepare, when nobody else works.
    """
    column = texts.cast(pa.large_string()).combine_chunks()
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    lengths = np.diff(ends)
    longest, total = int(lengths.max(initial=0)), int(lengths.sum())
    if not 0 < longest * len(column) <= total + 28 * len(column):
        return np.array(column.to_pylist(), object)
    fixed = np.zeros((len(column), longest), np.uint8)
    fixed[np.arange(longest) < lengths[:, None]] = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    return fixed.view(f"S{longest}").reshape(-1)


def free_name(name: str, fields: Sequence[FieldSpec]) -> str:
    """The name itself, or below `flatout/` where a field is called so."""
    return f"flatout/{name}" if any(spec.name == name for spec in fields) else name


def _gathered(table: str, readers: Sequence[ShardReader], runs: Sequence[Run]) -> Array:
    """A per-sample table of the shards in index order."""
    parts = [readers[run.shard].tables[table][run.row : run.row + run.count] for run in runs]
    return np.concatenate(parts) if parts else np.zeros((0, 2), np.float32)


def _describe(item: Any, spec: FieldSpec) -> None:
    """What another tool must know to read the values."""
    item.attrs["kind"] = spec.kind
    item.attrs["encoding"] = spec.encoding
    item.attrs["dtype"] = spec.dtype
    item.attrs["shape"] = [-1 if n is None else n for n in spec.shape]
    if spec.classes:  # a dataset: an attribute holds no more than 4,095 names
        item.file[f"flatout/classes/{spec.name}"] = list(spec.classes)


def _fill(spec: FieldSpec) -> Any:
    """NaN where the dtype has one: a missing shard then shows instead of looking like zeros."""
    return spec.stored_dtype.type(np.nan) if spec.stored_dtype.kind in "fc" else None


def _name(reader: ShardReader) -> str:
    return f"{SHARD_FOLDER}/{reader.meta.file}"
