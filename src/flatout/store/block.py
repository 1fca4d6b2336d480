"""Blocks: samples of one plain form, laid into the shard as they come, checked and hashed together.

To hold samples until there are enough of them fills the caches that the next are made with. To check each when
it comes finds cold code: 16 KB take 33 us alone between two decodes, 16 in a tight loop. So each is copied at
once to where it will stand, by one call, and what it was made in is used again; the rest is done for many.
Anything unusual goes the usual way.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flatout.source import hash_key, hash_texts
from flatout.store import checks
from flatout.store.specify import is_finite
from flatout.types import Array, FieldSpec, Row

BLOCK_ROWS = 64
LEAST_BYTES = 256 << 10
MOST_BYTES = 1 << 20
"""Of a block: more rows if they are small, and no more than a core's own cache holds."""


@dataclass(slots=True)
class EncodedBlock:
    """Whole rows' samples as they will stand in the shard, one after another."""

    keys: list[str]
    key_hashes: list[int]
    stored: dict[str, Array]
    """(N, ...) of each field."""
    crcs: dict[str, list[int]]

    @property
    def num_bytes(self) -> int:
        return sum([array.nbytes for array in self.stored.values()])


def are_plain(fields: Sequence[FieldSpec]) -> bool:
    """Whether samples of these fields are stored as they are, all in one shape."""
    return all(s.encoding == "none" and s.compression == "none" and not s.is_ragged for s in fields)


def block_rows(num_bytes: int) -> int:
    """How many samples of so many bytes make a block."""
    num_bytes = max(num_bytes, 1)
    return min(MOST_BYTES // num_bytes, max(BLOCK_ROWS, LEAST_BYTES // num_bytes))


def row_bytes(spec: FieldSpec) -> int:
    """Bytes of a sample of a plain field."""
    return math.prod(n or 0 for n in spec.shape) * np.dtype(spec.dtype).itemsize


def fits(fields: Sequence[FieldSpec], sample: Mapping[str, Array]) -> bool:
    """Whether a sample is just as its fields say, with nothing beside; its values are looked at later."""
    arrays = [(spec, sample.get(spec.name)) for spec in fields]
    return len(sample) == len(fields) and all(
        type(array) is np.ndarray and array.dtype == spec.dtype and array.shape == spec.shape
        for spec, array in arrays
    )


class Block:
    """Up to so many samples of `are_plain` fields."""

    def __init__(self, fields: Sequence[FieldSpec], most: int, rooms: Mapping[str, Array | None]) -> None:
        """`rooms`: the memory of each field in which its samples will stand, where there is any."""
        self.rows: list[tuple[int, Row]] = []
        """Position and row of each sample."""
        self._most = most
        self._parts = [
            (spec.name, np.dtype(spec.dtype), spec.shape, _laid_out(spec, most, rooms[spec.name]))
            for spec in fields
        ]

    @property
    def is_full(self) -> bool:
        return len(self.rows) == self._most

    def add(self, position: int, row: Row, sample: Mapping[str, Array]) -> bool:
        """Lay a row's sample behind the others; False, and nothing is kept, if it does not fit its fields."""
        at = len(self.rows)
        if len(sample) != len(self._parts):
            return False
        for name, dtype, shape, memory in self._parts:
            array = sample.get(name)
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                return False
            memory[at] = array
        self.rows.append((position, row))
        return True

    def samples(self) -> list[dict[str, Array]]:
        """Copies of what was laid down."""
        return [
            {name: memory[at, ...].copy() for name, _, _, memory in self._parts} for at in range(len(self.rows))
        ]

    def encode(self, allow_nonfinite: Container[str], *, safe: bool) -> EncodedBlock | None:
        """What the shard keeps; None if one of them has values that it may not have."""
        keys = [row.key for _, row in self.rows]
        key_hashes = [row.key_hash or hash_key(row.key) for _, row in self.rows]
        stored = {name: memory[: len(keys)] for name, _, _, memory in self._parts}
        for name, array in stored.items():
            if array.dtype.kind in "fc" and name not in allow_nonfinite and not is_finite(array):
                return None
        crcs = {n: checks.row_crcs(array) if safe else [0] * len(keys) for n, array in stored.items()}
        return EncodedBlock(keys, key_hashes, stored, crcs)


def _laid_out(spec: FieldSpec, most: int, room: Array | None) -> Array:
    """(most, ...) in a field's room."""
    memory = np.empty(most * row_bytes(spec), np.uint8) if room is None else room[: most * row_bytes(spec)]
    return memory.view(spec.dtype).reshape(most, *(n or 0 for n in spec.shape))


def plain_digests(fields: Sequence[FieldSpec], crcs: Mapping[str, Sequence[int]]) -> Array:
    """Identity of each sample of `are_plain` fields: 1 us each for a whole shard, in small blocks 2."""
    columns = []
    for spec in sorted(fields, key=lambda spec: spec.name):
        form = f"{spec.name},{spec.stored_dtype.str},{spec.shape}"
        columns.append([f"{form},{crc}" for crc in crcs[spec.name]])
    return hash_texts(columns[0] if len(columns) == 1 else map(";".join, zip(*columns, strict=True)))
