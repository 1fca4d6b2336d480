"""Compact: give back the space of samples that no longer stand for anything.

Shards with dead rows are written anew without them; then shards and indexes that neither the root nor the
journal of an interrupted prepare names are deleted. Readers that are open keep what they have mapped, and are
told to open the store anew when they need what is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flatout.source import hash_file
from flatout.store import journal, layout
from flatout.store.companions import settle
from flatout.store.index import read_index, rows_by_shard, write_index
from flatout.store.limits import disk_errors
from flatout.store.lock import locked
from flatout.store.metadata import (
    INDEX_NAME,
    SHARD_FOLDER,
    SHARD_NAME,
    ShardMeta,
    StoreMeta,
    load_metadata,
    save_metadata,
)
from flatout.store.samples import renumbered
from flatout.store.shard_reader import ShardReader
from flatout.store.shard_writer import EncodedSample, ShardWriter
from flatout.store.view import VIEW, write_view
from flatout.types import Array

logger = logging.getLogger("flatout.prepare")


@dataclass(frozen=True)
class CompactResult:
    """What a compaction did."""

    shards_rewritten: int
    files_deleted: int
    bytes_freed: int


def compact(folder: Path) -> CompactResult:
    """Rewrite shards with dead rows and delete what neither the root nor a journal names.

    Raises:
        StoreMissingError, StoreLockedError, StoreCorruptError: as named. A damaged shard is never rewritten.
    """
    with disk_errors(folder), locked(folder):
        before = sum(path.stat().st_size for path in _store_files(folder))
        meta = load_metadata(folder)
        index = read_index(folder / meta.index, num_rows=meta.num_samples)
        numbers = index["shard"].to_numpy()
        live = np.bincount(numbers, minlength=len(meta.shards))
        thin = [n for n, shard in enumerate(meta.shards) if live[n] < shard.rows]
        if thin:
            meta = _rewrite(folder, meta, index, thin)
        deleted = _delete_unnamed(folder, meta)
        after = sum(path.stat().st_size for path in _store_files(folder))
        logger.info("compacted: %d shards rewritten, %d files deleted", len(thin), deleted)
        return CompactResult(len(thin), deleted, max(0, before - after))


def _rewrite(folder: Path, meta: StoreMeta, index: Any, thin: list[int]) -> StoreMeta:
    rows = index["row"].to_numpy().copy()
    metas = list(meta.shards)
    next_number = 1 + max(int(shard.file.partition("-")[0]) for shard in metas)
    positions = rows_by_shard(index["shard"].to_numpy(), len(metas))
    for at, number in enumerate(thin):
        mine = positions[number]
        mine = mine[np.argsort(rows[mine], kind="stable")]
        metas[number] = _copy_rows(folder, meta, metas[number], rows[mine], next_number + at)
        rows[mine] = np.arange(len(mine), dtype=np.int32)
    index = index.set_column(index.schema.get_field_index("row"), "row", pa.array(rows))
    index, live = renumbered(index, metas)
    name, digest = write_index(folder, index)
    write_view(folder, meta.fields, live, index, meta.splits)
    files = {**meta.files, VIEW: hash_file(folder / VIEW)}
    meta = replace(meta, shards=live, index=name, index_blake3=digest, files=files)
    save_metadata(folder, meta)
    settle(folder)
    return meta


def _copy_rows(folder: Path, meta: StoreMeta, shard: ShardMeta, rows: Array, number: int) -> ShardMeta:
    """A new shard with these rows of an old one; every sample is checked on the way."""
    reader = ShardReader(folder / SHARD_FOLDER / shard.file, shard, meta.fields)
    writer = ShardWriter(meta.fields)
    keys = reader.keys()
    for row in rows.tolist():
        writer.append(stored_sample(reader, row, keys[row]))
    return writer.write(folder / SHARD_FOLDER, number)


def stored_sample(reader: ShardReader, row: int, key: str) -> EncodedSample:
    """A stored sample as the writer takes it.

    Raises:
        StoreCorruptError: it is damaged: its digest is another.
    """
    stored = {name: np.array(reader.stored(name, row)) for name in reader.fields}
    scales = {
        name: (float(pair[0]), float(pair[1]))
        for name, spec in reader.fields.items()
        if layout.is_quantised(spec)
        for pair in [reader.tables[layout.scale_path(name)][row]]
    }
    sample = EncodedSample.of(
        key, int(reader.tables[layout.KEY_HASH][row]), int(reader.tables[layout.PART][row]), stored, scales
    )
    if sample.digest() != int(reader.tables[layout.DIGEST][row]):
        raise reader.damaged(f"sample '{key}' does not match its checksum")
    return sample


def _delete_unnamed(folder: Path, meta: StoreMeta) -> int:
    """Shards that an interrupted prepare has finished stay: its journal names them, and it may go on."""
    under_way = journal.find(folder)
    finished = [*under_way.head.adopted, *under_way.shards()] if under_way is not None else []
    named = {meta.index, *(shard.file for shard in (*meta.shards, *finished))}
    deleted = 0
    for path in _store_files(folder):
        if path.name not in named:
            path.unlink(missing_ok=True)
            deleted += 1
    return deleted


def _store_files(folder: Path) -> Iterator[Path]:
    """Shards and indexes by the form of their names: somebody may keep files of his own beside them."""
    for place, form in ((folder / SHARD_FOLDER, SHARD_NAME), (folder, INDEX_NAME)):
        yield from (path for path in place.glob("*") if form.fullmatch(path.name))
