"""Blocks: small samples of one plain form, checked and encoded together; anything unusual goes the usual way.

A sample of 16 KB takes 10 us so, and 20 us alone between two decodes, where every call finds cold caches.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flatout.source import hash_texts
from flatout.store import checks
from flatout.store.specify import is_finite
from flatout.types import Array, FieldSpec

LEAST_ROWS = 4
"""Fewer are large samples, which gain nothing."""


@dataclass(slots=True)
class EncodedBlock:
    """Whole rows' samples as they will stand in the shard, one after another."""

    keys: list[str]
    stored: dict[str, Array]
    """(N, ...) of each field."""
    crcs: dict[str, list[int]]

    @property
    def num_bytes(self) -> int:
        return sum([array.nbytes for array in self.stored.values()])


def are_plain(fields: Sequence[FieldSpec]) -> bool:
    """Whether samples of these fields are stored as they are, all in one shape."""
    return all(s.encoding == "none" and s.compression == "none" and not s.is_ragged for s in fields)


def encode_block(
    fields: Sequence[FieldSpec],
    keys: list[str],
    samples: Sequence[Mapping[str, Array]],
    allow_nonfinite: Container[str],
    *,
    safe: bool,
    room: Callable[[str, int], Array | None] = lambda name, num_bytes: None,
) -> EncodedBlock | None:
    """The samples of `are_plain` fields as one block; None if one of them is not just as its fields say.

    Args:
        room: a field and a number of bytes in, the memory that the block will stand in out, where there is any.
    """
    stored: dict[str, Array] = {}
    for spec in fields:
        block = _stacked(spec, [sample.get(spec.name) for sample in samples], room)
        if block is None:
            return None
        if block.dtype.kind in "fc" and spec.name not in allow_nonfinite and not is_finite(block):
            return None
        stored[spec.name] = block
    if not safe:
        return EncodedBlock(keys, stored, dict.fromkeys(stored, [0] * len(keys)))
    crcs = {name: checks.row_crcs(block) for name, block in stored.items()}
    return EncodedBlock(keys, stored, crcs)


def _stacked(
    spec: FieldSpec, arrays: Sequence[Array | None], room: Callable[[str, int], Array | None]
) -> Array | None:
    """(N, ...) of arrays that all have the field's dtype and shape."""
    dtype, shape = np.dtype(spec.dtype), spec.shape
    found = [a for a in arrays if type(a) is np.ndarray and a.dtype == dtype and a.shape == shape]
    if len(found) < len(arrays):
        return None
    if not shape:
        return np.array(found, dtype)
    memory = room(spec.name, len(found) * found[0].nbytes)
    if memory is None:
        joined: Array = np.concatenate(found)
    else:
        joined = np.concatenate(found, out=memory.view(dtype).reshape(-1, *found[0].shape[1:]))
    return joined.reshape(len(found), *found[0].shape)


def plain_digests(fields: Sequence[FieldSpec], crcs: Mapping[str, Sequence[int]]) -> Array:
    """Identity of each sample of `are_plain` fields: 1 us each for a whole shard, in small blocks 2."""
    columns = []
    for spec in sorted(fields, key=lambda spec: spec.name):
        form = f"{spec.name},{spec.stored_dtype.str},{spec.shape}"
        columns.append([f"{form},{crc}" for crc in crcs[spec.name]])
    return hash_texts(columns[0] if len(columns) == 1 else map(";".join, zip(*columns, strict=True)))
