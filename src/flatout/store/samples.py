"""Tables of samples: those a shard holds, those of an earlier version, and which of them are up to date."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flatout.errors import ManifestError
from flatout.source import key_hashes
from flatout.store import layout
from flatout.store.index import index_schema, length_column
from flatout.store.metadata import SHARD_FOLDER, ShardMeta
from flatout.store.shard_reader import ShardReader
from flatout.types import Array, FieldSpec

_PIECE = "#[^#]*$|^[^#]*$"
"""What makes a piece's key of its row's: its number and the sign before it."""


def samples_of_shards(
    folder: Path, shards: Sequence[ShardMeta], fields: Sequence[FieldSpec], first_shard: int = 0
) -> Any:
    """What the shards themselves say: key, place, part, digest and lengths of each sample."""
    tables = []
    for number, meta in enumerate(shards, start=first_shard):
        reader = ShardReader(folder / SHARD_FOLDER / meta.file, meta, fields)
        columns: dict[str, Any] = {
            "key_hash": reader.tables[layout.KEY_HASH],
            "shard": np.full(meta.rows, number, np.int32),
            "row": np.arange(meta.rows, dtype=np.int32),
            "part": reader.tables[layout.PART],
            "digest": reader.tables[layout.DIGEST],
            "key": _keys(reader),
        }
        for spec in fields:
            if spec.is_ragged:
                columns[length_column(spec.name)] = reader.lengths(spec.name)
        tables.append(pa.table({name: _copied(column) for name, column in columns.items()}))
    return pa.concat_tables(tables) if tables else empty_samples(fields)


def empty_samples(fields: Sequence[FieldSpec]) -> Any:
    """No samples, with the columns of `samples_of_shards`."""
    wanted = ["key_hash", "shard", "row", "part", "digest", "key"]
    wanted += [length_column(spec.name) for spec in fields if spec.is_ragged]
    schema = index_schema(fields)
    return pa.schema([schema.field(name) for name in wanted]).empty_table()


def row_hashes(samples: Any) -> Array:
    """Hash of the manifest row that each sample came from: of its key without the piece's number.

    A row's pieces are hashed together: a million, ten a row, take 0.2 s; key by key 0.75 s.
    """
    hashes: Array = samples["key_hash"].to_numpy().copy()
    parts = samples["part"].to_numpy()
    pieces = np.flatnonzero(parts >= 0)
    if len(pieces):
        keys = samples["key"].take(pa.array(pieces)).cast(pa.large_string()).combine_chunks()
        rows = pc.replace_substring_regex(keys, _PIECE, "").dictionary_encode()
        hashes[pieces] = key_hashes(rows.dictionary)[rows.indices.to_numpy()]
    return hashes


class RowFinder:
    """Finds manifest rows by the hash of their key."""

    def __init__(self, key_hashes: Array, keys: Any) -> None:
        self._hashes = key_hashes
        self._order = np.argsort(key_hashes, kind="stable")
        self._sorted = key_hashes[self._order]
        twins = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if len(twins):
            first, second = self._order[twins[0]], self._order[twins[0] + 1]
            raise ManifestError(
                f"the keys '{keys[int(first)]}' and '{keys[int(second)]}' have the same 64-bit hash; rename one"
            )

    def positions(self, hashes: Array, likely: Array | None = None) -> Array:
        """Manifest position of each hash, -1 where there is no such row.

        Args:
            likely: where they all stand, most likely: then nothing is searched (0.17 us each).
        """
        if likely is not None and np.array_equal(self._hashes[likely], hashes):
            return likely
        if not len(self._sorted):
            return np.full(len(hashes), -1, np.int64)
        at = np.minimum(np.searchsorted(self._sorted, hashes), len(self._sorted) - 1)
        found: Array = np.where(self._sorted[at] == hashes, self._order[at], -1)
        return found.astype(np.int64)


def up_to_date(samples: Any, positions: Array, fingerprints: Array) -> Array:
    """Which samples still stand for their row: the row is there and its fingerprint is the recorded one."""
    recorded: Array = samples["fingerprint"].to_numpy()
    found: Array = positions >= 0
    same: Array = found & (recorded != 0) & (recorded == fingerprints[np.maximum(positions, 0)])
    return same


def in_manifest_order(samples: Any, positions: Array) -> tuple[Any, Array]:
    """Samples and their positions, sorted by manifest position, then by piece."""
    order = np.lexsort((samples["part"].to_numpy(), positions))
    return samples.take(pa.array(order)), positions[order]


def renumbered(samples: Any, shards: Sequence[ShardMeta]) -> tuple[Any, tuple[ShardMeta, ...]]:
    """Drop shards without a sample; the `shard` column counts within what is left."""
    numbers = samples["shard"].to_numpy()
    used = np.unique(numbers)
    new_numbers = np.searchsorted(used, numbers).astype(np.int32)
    at = samples.schema.get_field_index("shard")
    return samples.set_column(at, "shard", pa.array(new_numbers)), tuple(shards[n] for n in used.tolist())


def refuse_twins(samples: Any) -> None:
    """No two samples may have one key: a row called `a#0000` beside the pieces of row `a` would.

    Raises:
        ManifestError: naming the key.
    """
    hashes = np.sort(samples["key_hash"].to_numpy())
    twins = hashes[1:][hashes[1:] == hashes[:-1]]
    if len(twins):
        at = int(np.flatnonzero(samples["key_hash"].to_numpy() == twins[0])[0])
        key = samples["key"][at].as_py()
        raise ManifestError(f"two samples have the key '{key}'; rename a row, or choose another key_column")


def distinct(positions: Array, num_rows: int) -> Array:
    """Each of these manifest positions once, in order; -1 is none. NumPy's own way takes ten times as long."""
    is_named = np.zeros(num_rows, bool)
    is_named[positions[positions >= 0]] = True
    return np.flatnonzero(is_named)


def _keys(reader: ShardReader) -> Any:
    """The keys as an Arrow column, without a Python text each."""
    offsets = np.ascontiguousarray(reader.tables[layout.KEY_OFFSETS], np.int64)
    data = reader.tables[layout.KEY_BYTES].tobytes()
    try:
        column = pa.LargeStringArray.from_buffers(len(reader), pa.py_buffer(offsets), pa.py_buffer(data))
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise reader.damaged(f"its keys cannot be read: {error}") from error
    return column.cast(pa.string())


def _copied(column: Any) -> Any:
    """A column that does not keep the shard's map alive."""
    return column if isinstance(column, pa.Array) else pa.array(np.array(column))
