"""ShardReader: one shard, read by offset and never through libhdf5: rows in, arrays out."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from flatout.errors import StoreCorruptError
from flatout.store import checks, layout
from flatout.store.compress import decompress
from flatout.store.encode import restore
from flatout.store.metadata import ShardMeta
from flatout.types import Array, FieldSpec


class ShardReader:
    """A mapped shard. Sizes and offsets are checked when it is opened, small tables when first used."""

    def __init__(self, path: Path, meta: ShardMeta, fields: Sequence[FieldSpec]) -> None:
        self.path = path
        self.meta = meta
        self.fields = {spec.name: spec for spec in fields}
        self._table_dtypes = layout.table_dtypes(fields)
        self._at = dict(zip(layout.dataset_paths(fields), meta.at, strict=True))
        self._bytes = self._map()

    def __len__(self) -> int:
        return self.meta.rows

    @cached_property
    def tables(self) -> dict[str, Array]:
        """Every small table, checked against the crc that the root records.

        Raises:
            StoreCorruptError: a table is damaged.
        """
        tables: dict[str, Array] = {}
        for path, dtype in self._table_dtypes.items():
            tables[path] = self._contiguous(path, np.dtype(dtype), self._table_shape(path, tables))
        if checks.tables_crc(tables.values()) != self.meta.crc:
            raise self.damaged("its tables do not match their checksum")
        return tables

    def keys(self) -> list[str]:
        """The samples' keys in row order."""
        raw, offsets = self.tables[layout.KEY_BYTES].tobytes(), self.tables[layout.KEY_OFFSETS].tolist()
        return [raw[a:b].decode() for a, b in pairwise(offsets)]

    def lengths(self, name: str) -> Array:
        """Elements of each sample of a ragged field."""
        return np.diff(self.tables[layout.offsets_path(name)])

    def data(self, name: str) -> Array:
        """A field's whole data as stored: (rows, ...) or the flat values of a ragged one. Not compressed."""
        spec = self.fields[name]
        if spec.is_ragged:
            shape: tuple[int, ...] = (int(self.tables[layout.offsets_path(name)][-1]),)
        else:
            shape = (len(self), *(n or 0 for n in spec.shape))
        return self._contiguous(layout.data_path(spec), spec.stored_dtype, shape)

    def stored(self, name: str, row: int) -> Array:
        """One sample of one field as stored (encoded, decompressed)."""
        spec = self.fields[name]
        if spec.compression != "none":
            return self._decompressed(spec, row)
        if not spec.is_ragged:
            return np.asarray(self.data(name)[row])
        start, stop = self.tables[layout.offsets_path(name)][row : row + 2]
        return self.data(name)[start:stop].reshape(self.shape(name, row))

    def read(self, name: str, row: int) -> Array:
        """One sample of one field, restored; a copy that outlives the map."""
        spec, stored = self.fields[name], self.stored(name, row)
        scale = None
        if layout.is_quantised(spec):
            pair = self.tables[layout.scale_path(name)][row]
            scale = float(pair[0]), float(pair[1])
        return np.array(restore(spec, stored, scale))

    def shape(self, name: str, row: int) -> tuple[int, ...]:
        """Shape of one sample."""
        spec = self.fields[name]
        if not spec.is_ragged:
            return tuple(n or 0 for n in spec.shape)
        if layout.has_shapes(spec):
            return tuple(self.tables[layout.shapes_path(name)][row].tolist())
        length = int(self.lengths(name)[row])
        others = math.prod(n for n in spec.shape if n is not None)
        return tuple(length // max(others, 1) if n is None else n for n in spec.shape)

    def bad_rows(self, name: str) -> list[int]:
        """Rows of a field whose bytes do not match their crc."""
        spec, crcs = self.fields[name], self.tables[layout.crc_path(name)]
        if spec.compression == "none":
            flat = self.data(name).reshape(-1).view(np.uint8)
            if checks.uses_blocks(len(self), flat.size):
                return self._rows_of_blocks(spec, np.flatnonzero(checks.block_crcs(flat) != crcs))
        return [row for row in range(len(self)) if not self._row_is_good(name, row, int(crcs[row]))]

    def _row_is_good(self, name: str, row: int, crc: int) -> bool:
        try:
            return checks.crc32c(self.stored(name, row)) == crc
        except (StoreCorruptError, ValueError):
            return False

    def _rows_of_blocks(self, spec: FieldSpec, blocks: Array) -> list[int]:
        item = spec.stored_dtype.itemsize
        if spec.is_ragged:
            edges = self.tables[layout.offsets_path(spec.name)] * item
        else:
            edges = np.arange(len(self) + 1) * (item * math.prod(n or 0 for n in spec.shape))
        starts, stops = blocks * checks.BLOCK_BYTES, (blocks + 1) * checks.BLOCK_BYTES
        touched = (edges[:-1, None] < stops) & (edges[1:, None] > starts)
        return [int(row) for row in np.flatnonzero(touched.any(axis=1))]

    def _decompressed(self, spec: FieldSpec, row: int) -> Array:
        offset, size = self.tables[layout.chunks_path(spec.name)][row].tolist()
        chunk = self._bytes[offset : offset + size].tobytes()
        shape = self.shape(spec.name, row)
        num_items = math.prod(shape)
        padded = int(self.lengths(spec.name).max()) if spec.is_ragged else num_items
        if not padded:
            return np.empty(shape, spec.stored_dtype)
        raw = decompress(spec.compression, chunk, padded * spec.stored_dtype.itemsize)
        return np.frombuffer(raw, spec.stored_dtype, count=num_items).reshape(shape)

    def _table_shape(self, path: str, tables: dict[str, Array]) -> tuple[int, ...]:
        rows = len(self)
        if path == layout.KEY_BYTES:
            return (self._num_key_bytes(),)
        if path.startswith(("flatout/scale/", "flatout/chunks/")):
            return (rows, 2)
        if path.startswith("flatout/crc/"):
            return (self._num_crcs(self.fields[path.rpartition("/")[2]]),)
        if path == layout.KEY_OFFSETS or path.endswith("/offsets"):
            return (rows + 1,)
        if path.endswith("/shapes"):
            return (rows, len(self.fields[path.partition("/")[0]].shape))
        return (rows,)

    def _num_key_bytes(self) -> int:
        return int(self._contiguous(layout.KEY_OFFSETS, np.dtype("<i8"), (len(self) + 1,))[-1])

    def _num_crcs(self, spec: FieldSpec) -> int:
        if spec.is_ragged:
            offsets = self._contiguous(layout.offsets_path(spec.name), np.dtype("<i8"), (len(self) + 1,))
            num_bytes = int(offsets[-1]) * spec.stored_dtype.itemsize
        else:
            num_bytes = len(self) * math.prod(n or 0 for n in spec.shape) * spec.stored_dtype.itemsize
        if spec.compression == "none" and checks.uses_blocks(len(self), num_bytes):
            return -(-num_bytes // checks.BLOCK_BYTES)
        return len(self)

    def _contiguous(self, path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """A typed view of the map; nothing is copied."""
        num_bytes, offset = math.prod(shape) * dtype.itemsize, self._at[path]
        if num_bytes == 0:
            return np.empty(shape, dtype)
        if offset is None or num_bytes < 0 or offset % dtype.itemsize or offset + num_bytes > self.meta.size:
            raise self.damaged(f"dataset {path} ({num_bytes:,} bytes at {offset}) does not fit the file")
        return self._bytes[offset : offset + num_bytes].view(dtype).reshape(shape)

    def _map(self) -> Array:
        try:
            with open(self.path, "rb") as file:
                size = file.seek(0, 2)
                if size == self.meta.size:
                    return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        except OSError as error:
            raise self.damaged(error.strerror or str(error)) from error
        raise self.damaged(f"it has {size:,} bytes instead of {self.meta.size:,}")

    def damaged(self, reason: str) -> StoreCorruptError:
        """The error that says what is wrong with this shard and how to mend it."""
        return StoreCorruptError(
            f"shard {self.path} is damaged: {reason}. "
            f"'flatout verify {self.path.parent.parent} --repair' rebuilds it from the sources"
        )
