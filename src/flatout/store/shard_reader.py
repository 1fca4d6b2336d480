"""ShardReader: one shard, read by offset and never through libhdf5: rows in, arrays out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from flatout.errors import StoreCorruptError
from flatout.store import checks, layout
from flatout.store.byte_source import ByteSource, MappedBytes, OpenBytes
from flatout.store.compress import decompress
from flatout.store.encode import restore
from flatout.store.metadata import ShardMeta
from flatout.types import Array, FieldSpec


class ShardReader:
    """An open shard. Sizes and offsets are checked when it is opened, small tables when first used.

    Args:
        open_bytes: how its bytes are read; by default the file is mapped.
    """

    def __init__(
        self,
        path: Path,
        meta: ShardMeta,
        fields: Sequence[FieldSpec],
        open_bytes: OpenBytes = MappedBytes,
    ) -> None:
        self.path = path
        self.meta = meta
        self.fields = {spec.name: spec for spec in fields}
        self._table_dtypes = layout.table_dtypes(fields)
        self._at = dict(zip(layout.dataset_paths(fields), meta.at, strict=True))
        self._bytes = self._open(open_bytes)
        # Not cached_property: its lock is one for all shards, and a fork in the middle leaves it held for good.
        self._tables: dict[str, Array] | None = None
        self._longest: dict[str, int] | None = None

    def __len__(self) -> int:
        return self.meta.rows

    @property
    def tables(self) -> dict[str, Array]:
        """Every small table, checked against the crc that the root records, and for sense.

        Raises:
            StoreCorruptError: a table is damaged, or names bytes that are not this shard's.
        """
        if self._tables is None:
            self._tables = self._load_tables()
        return self._tables

    def _load_tables(self) -> dict[str, Array]:
        tables: dict[str, Array] = {}
        for path, dtype in self._table_dtypes.items():
            tables[path] = self._contiguous(path, np.dtype(dtype), self._table_shape(path, tables))
        if checks.tables_crc(tables.values()) != self.meta.crc:
            raise self.damaged("its tables do not match their checksum")
        self._check_sense(tables)
        self._check_places(tables)
        return tables

    def announce_tables(self) -> None:
        """Ask the system to fetch the tables; returns at once. A page of them that is not there would be
        waited for, and all that the system reads around it: 256 shards took 0.8 s, announced 0.02."""
        if self._tables is None:
            self._announce(0, self.meta.head_bytes(tuple(self.fields.values())))

    def announce_data(self, name: str) -> None:
        """The same for all data of a field of one shape."""
        start = self.offset_of(name) or 0
        self._announce(start, start + self._num_bytes(self.fields[name]))

    def _announce(self, start: int, stop: int) -> None:
        stop = min(stop, self.meta.size)  # what a root says may be beyond all bounds
        if 0 <= start < stop:
            self._bytes.announce(start, stop - start)

    def keys(self) -> list[str]:
        """The samples' keys in row order."""
        raw, offsets = self.tables[layout.KEY_BYTES].tobytes(), self.tables[layout.KEY_OFFSETS].tolist()
        try:
            return [raw[a:b].decode() for a, b in pairwise(offsets)]
        except UnicodeDecodeError as error:
            raise self.damaged(f"a key is not UTF-8: {error}") from error

    def key(self, row: int) -> str:
        """One sample's key, for messages."""
        start, stop = self.tables[layout.KEY_OFFSETS][row : row + 2].tolist()
        return self.tables[layout.KEY_BYTES][start:stop].tobytes().decode(errors="replace")

    def lengths(self, name: str) -> Array:
        """Elements of each sample of a ragged field."""
        return np.diff(self.tables[layout.offsets_path(name)])

    def data(self, name: str) -> Array:
        """A field's whole data as stored: (rows, ...) or the flat values of a ragged one. Not compressed."""
        spec = self.fields[name]
        shape = self._data_shape(spec, self.tables if spec.is_ragged else {})
        return self._contiguous(layout.data_path(spec), spec.stored_dtype, shape)

    def offset_of(self, name: str) -> int | None:
        """File offset of a field's data; None if it is empty or compressed."""
        return self._at[layout.data_path(self.fields[name])]

    def stored(self, name: str, row: int) -> Array:
        """One sample of one field as stored (encoded, decompressed)."""
        spec = self.fields[name]
        if spec.compression != "none":
            return self._decompressed(spec, row)
        if not spec.is_ragged:
            return np.asarray(self.data(name)[row])
        found = self.field_bytes(name, *self.byte_range(name, row))
        return self._shaped(found.view(spec.stored_dtype), name, row)

    def read(self, name: str, row: int) -> Array:
        """One sample of one field, restored; a copy that outlives the map."""
        spec, stored = self.fields[name], self.stored(name, row)
        scale = None
        if layout.is_quantised(spec):
            pair = self.tables[layout.scale_path(name)][row]
            scale = float(pair[0]), float(pair[1])
        return np.array(restore(spec, stored, scale))

    def check(self, name: str, row: int) -> None:
        """Compare one sample of one field with its crc, or the blocks that hold it with theirs.

        Raises:
            StoreCorruptError: they differ.
        """
        if self.has_block_crcs(name):
            is_good = all(self.block_is_good(name, at) for at in self.blocks(name, row))
        else:
            is_good = self._row_is_good(name, row, int(self.tables[layout.crc_path(name)][row]))
        if not is_good:
            raise self.damaged_sample(name, row, "its bytes do not match their checksum")

    def blocks(self, name: str, row: int) -> range:
        """Numbers of the blocks that hold a small sample, which share crcs with their neighbours."""
        start, stop = self.byte_range(name, row)
        return range(start // checks.BLOCK_BYTES, -(-stop // checks.BLOCK_BYTES))

    def block_is_good(self, name: str, at: int) -> bool:
        """Whether a block of an uncompressed field matches its crc."""
        block = self.field_bytes(name, at * checks.BLOCK_BYTES, (at + 1) * checks.BLOCK_BYTES)
        return checks.crc32c(block) == int(self.tables[layout.crc_path(name)][at])

    def shape(self, name: str, row: int) -> tuple[int, ...]:
        """Shape of one sample."""
        spec = self.fields[name]
        if not spec.is_ragged:
            return tuple(n or 0 for n in spec.shape)
        if layout.has_shapes(spec):
            return tuple(self.tables[layout.shapes_path(name)][row].tolist())
        start, stop = self.tables[layout.offsets_path(name)][row : row + 2].tolist()
        others = math.prod(n for n in spec.shape if n is not None)
        return tuple((stop - start) // others if n is None else n for n in spec.shape)

    def has_block_crcs(self, name: str) -> bool:
        """Whether a field's crcs are per 64 KiB of its data rather than per sample."""
        spec = self.fields[name]
        return spec.compression == "none" and checks.uses_blocks(len(self), self._num_bytes(spec))

    def byte_range(self, name: str, row: int) -> tuple[int, int]:
        """Where a sample's bytes stand within its uncompressed field."""
        spec = self.fields[name]
        item = spec.stored_dtype.itemsize
        if spec.is_ragged:
            start, stop = self.tables[layout.offsets_path(name)][row : row + 2].tolist()
            return start * item, stop * item
        row_bytes = item * math.prod(n or 0 for n in spec.shape)
        return row * row_bytes, (row + 1) * row_bytes

    def field_bytes(self, name: str, start: int, stop: int) -> Array:
        """Bytes start..stop-1 of an uncompressed field's data; fewer where it ends before `stop`."""
        offset, stop = self.offset_of(name), min(stop, self._num_bytes(self.fields[name]))
        if offset is None or stop <= start:
            return np.empty(0, np.uint8)
        return self._bytes.read(offset + start, stop - start)

    def bad_rows(self, name: str) -> list[int]:
        """Rows of a field whose bytes do not match their crc."""
        spec, crcs = self.fields[name], self.tables[layout.crc_path(name)]
        if spec.compression == "none":
            flat = self.data(name).reshape(-1).view(np.uint8)
            if checks.uses_blocks(len(self), flat.size):
                return self._rows_of_blocks(spec, np.flatnonzero(checks.block_crcs([flat]) != crcs))
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
        firsts = np.searchsorted(edges[1:], blocks * checks.BLOCK_BYTES, "right")
        lasts = np.searchsorted(edges[:-1], (blocks + 1) * checks.BLOCK_BYTES, "left")
        touched = {row for span in zip(firsts.tolist(), lasts.tolist(), strict=True) for row in range(*span)}
        return sorted(row for row in touched if edges[row] < edges[row + 1])

    def _decompressed(self, spec: FieldSpec, row: int) -> Array:
        offset, size = self.tables[layout.chunks_path(spec.name)][row].tolist()
        chunk = self._bytes.read(offset, size).tobytes()
        num_items = math.prod(self.shape(spec.name, row))
        padded = self._longest_of(spec.name) if spec.is_ragged else num_items
        try:
            raw = decompress(spec.compression, chunk, padded * spec.stored_dtype.itemsize) if padded else b""
        except StoreCorruptError as error:
            raise self.damaged_sample(spec.name, row, str(error)) from error
        return self._shaped(np.frombuffer(raw, spec.stored_dtype, count=num_items), spec.name, row)

    def _longest_of(self, name: str) -> int:
        """Elements of a ragged field's longest sample, which its compressed chunks are padded to."""
        if self._longest is None:
            ragged = [name for name, spec in self.fields.items() if spec.is_ragged]
            self._longest = {name: int(self.lengths(name).max(initial=0)) for name in ragged}
        return self._longest[name]

    def _shaped(self, flat: Array, name: str, row: int) -> Array:
        try:
            return flat.reshape(self.shape(name, row))
        except ValueError as error:
            raise self.damaged(f"row {row} of field '{name}': {error}") from error

    def _check_sense(self, tables: dict[str, Array]) -> None:
        """A crc that matches is no promise: a hostile shard has those, too."""
        ragged = [name for name, spec in self.fields.items() if spec.is_ragged]
        for path in (layout.KEY_OFFSETS, *map(layout.offsets_path, ragged)):
            if tables[path][0] != 0 or (tables[path][1:] < tables[path][:-1]).any():
                raise self.damaged(f"the offsets {path} do not rise from 0")
        for name in ragged:
            if layout.has_shapes(self.fields[name]):
                shapes, lengths = tables[layout.shapes_path(name)], np.diff(tables[layout.offsets_path(name)])
                if (shapes < 0).any() or (shapes.prod(axis=1, dtype=float) != lengths).any():
                    raise self.damaged(f"shapes and lengths of field '{name}' contradict each other")

    def _check_places(self, tables: dict[str, Array]) -> None:
        """No byte belongs to two datasets or chunks, and none stands outside the file."""
        sizes = {path: table.nbytes for path, table in tables.items()}
        for spec in self.fields.values():
            sizes[layout.data_path(spec)] = self._num_bytes(spec, tables)
        top = self.meta.size + 1  # what is larger may not fit 64 bits
        whole = [(min(at, top), min(sizes[path], top)) for path, at in self._at.items() if at is not None]
        chunks = [tables[layout.chunks_path(n)] for n, s in self.fields.items() if s.compression != "none"]
        places = np.concatenate([np.array(whole, np.int64).reshape(-1, 2), *chunks])
        places = places[np.lexsort(places.T[::-1])]
        ends = places.sum(axis=1)
        is_inside = ((places >= 0) & (places <= self.meta.size)).all() and (ends <= self.meta.size).all()
        if not is_inside or (ends[:-1] > places[1:, 0]).any():
            raise self.damaged("its datasets overlap or leave the file")

    def _num_bytes(self, spec: FieldSpec, tables: dict[str, Array] | None = None) -> int:
        """Bytes of a field's data, uncompressed."""
        tables = tables or (self.tables if spec.is_ragged else {})
        return math.prod(self._data_shape(spec, tables)) * spec.stored_dtype.itemsize

    def _data_shape(self, spec: FieldSpec, tables: dict[str, Array]) -> tuple[int, ...]:
        if spec.is_ragged:
            return (int(tables[layout.offsets_path(spec.name)][-1]),)
        return (len(self), *(n or 0 for n in spec.shape))

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
        """A typed view of the bytes; of a map nothing is copied."""
        num_bytes, offset = math.prod(shape) * dtype.itemsize, self._at[path]
        if num_bytes == 0:
            with suppress(ValueError):  # a shape beyond all bounds times zero
                return np.empty(shape, dtype)
        elif offset is not None and offset % dtype.itemsize == 0 and 0 < num_bytes <= self.meta.size - offset:
            return self._bytes.read(offset, num_bytes).view(dtype).reshape(shape)
        raise self.damaged(f"dataset {path} ({num_bytes:,} bytes at {offset}) does not fit the file")

    def _open(self, open_bytes: OpenBytes) -> ByteSource:
        try:
            size = self.path.stat().st_size
            if size == self.meta.size:
                return open_bytes(self.path, size)
        except OSError as error:
            raise self.damaged(error.strerror or str(error)) from error
        raise self.damaged(f"it has {size:,} bytes instead of {self.meta.size:,}")

    def damaged_sample(self, name: str, row: int, reason: str) -> StoreCorruptError:
        """The error for one sample of one field."""
        return self.damaged(f"field '{name}' of sample '{self.key(row)}': {reason}")

    def damaged(self, reason: str) -> StoreCorruptError:
        """The error that says what is wrong with this shard and how to mend it."""
        return StoreCorruptError(
            f"shard {self.path} is damaged: {reason}. "
            f"'flatout verify {self.path.parent.parent} --repair' rebuilds it from the sources",
            reason,
        )
