"""OpenSegment: a mapped segment of a cache: row in, its arrays out, checked when first touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flatout.errors import StoreCorruptError
from flatout.lazy import cached_property
from flatout.source import hash_key
from flatout.store import checks, layout
from flatout.store.fill.log import Segment
from flatout.store.metadata import SHARD_FOLDER
from flatout.store.shard_reader import ShardReader
from flatout.types import Array, FieldSpec


class OpenSegment:
    """One segment, read by offset. Fields of tiny samples are checked as a whole at the first read.

    Raises:
        StoreCorruptError: on opening or reading: the shard is missing or damaged.
    """

    def __init__(self, folder: Path, segment: Segment) -> None:
        self.segment = segment
        self.reader = ShardReader(folder / SHARD_FOLDER / segment.meta.file, segment.meta, segment.fields)

    @cached_property
    def _columns(self) -> list[_Column]:
        return [_Column(self.reader, spec) for spec in self.segment.fields]

    def indices(self) -> Array:
        """Which item of the dataset each row is."""
        return indices_of(self.reader)

    def digests(self) -> Array:
        """64-bit identity of each row's content."""
        return self.reader.tables[layout.DIGEST]

    def read(self, row: int) -> list[Array]:
        """Copies of one row's arrays, as stored."""
        return [column.read(row) for column in self._columns]

    def read_field(self, at: int, row: int) -> Array:
        """A copy of one row of one field, by its place among the fields."""
        return self._columns[at].read(row)

    def read_checked(self, row: int, index: int) -> list[Array]:
        """The same, compared with their crcs, after a look whether the row is that item's."""
        hashes = self.reader.tables[layout.KEY_HASH]
        if row >= len(hashes) or int(hashes[row]) != hash_key(str(index)):
            raise self.reader.damaged(f"row {row} is not item {index}")
        arrays = self.read(row)
        for column, array in zip(self._columns, arrays, strict=True):
            column.check(row, array)
        return arrays


def indices_of(reader: ShardReader) -> Array:
    """A cache's keys are the items' numbers."""
    try:
        keys = reader.keys()
        return np.array([int(key) for key in keys], np.int64)
    except (ValueError, OverflowError) as error:
        raise reader.damaged(f"a key is no item's number: {error}") from error


class _Column:
    """One field of a segment; its views are made once, since making them costs more than a small copy."""

    def __init__(self, reader: ShardReader, spec: FieldSpec) -> None:
        self._reader = reader
        self._spec = spec
        self._data = reader.data(spec.name)
        self._offsets: list[int] | None = None
        if spec.is_ragged:
            self._offsets = reader.tables[layout.offsets_path(spec.name)].tolist()
        self._crcs: Any = None
        if checks.uses_blocks(len(reader), self._data.nbytes):
            if bad := reader.bad_rows(spec.name):
                raise self._damaged(bad[0])
        else:
            self._crcs = reader.tables[layout.crc_path(spec.name)]

    def read(self, row: int) -> Array:
        if self._offsets is None:
            return np.array(self._data[row])
        flat = np.array(self._data[self._offsets[row] : self._offsets[row + 1]])
        return flat if len(self._spec.shape) == 1 else flat.reshape(self._reader.shape(self._spec.name, row))

    def check(self, row: int, array: Array) -> None:
        if self._crcs is not None and checks.crc32c(array) != self._crcs[row]:
            raise self._damaged(row)

    def _damaged(self, row: int) -> StoreCorruptError:
        return self._reader.damaged(f"row {row} of field '{self._spec.name}' does not match its checksum")
