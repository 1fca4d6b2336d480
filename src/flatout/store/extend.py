"""Extend: a store's next version, or another store, whose samples have one field more.

A shard never changes, so each is written anew: its samples' stored bytes as they are, checked on the way, and
the new field beside them. The root is swapped last; cut off anywhere, the store is what it was.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flatout.errors import ConfigError, StoreError
from flatout.source import hash_file
from flatout.store import journal as journals
from flatout.store.checks import content_hash
from flatout.store.commit import QUARANTINE, STATS
from flatout.store.compaction import stored_sample
from flatout.store.companions import replace_companion, settle
from flatout.store.index import index_schema, read_index, rows_by_shard, write_index
from flatout.store.layout import check_field_name
from flatout.store.limits import check_free_space, disk_errors
from flatout.store.metadata import SHARD_FOLDER, ShardMeta, StoreMeta, load_metadata, save_metadata
from flatout.store.progress import Progress, Silent
from flatout.store.reader import StoreReader
from flatout.store.samples import renumbered
from flatout.store.shard_writer import EncodedSample, ShardWriter
from flatout.store.view import VIEW, write_view
from flatout.types import Array, FieldSpec

ADDED = "added"
"""Key of the root's settings under which fields that were added say what made them."""


def extended_fields(store: StoreReader, spec: FieldSpec, keep: Sequence[str] | None) -> tuple[FieldSpec, ...]:
    """The fields of a store after one was added; another of its name is replaced.

    Raises:
        ConfigError: the name cannot be a field's, or a field to keep is not there.
    """
    check_field_name(spec.name)
    names = list(store.fields) if keep is None else keep
    if unknown := [name for name in names if name not in store.fields]:
        raise ConfigError(f"{store.folder} has no field '{unknown[0]}'; it has: {', '.join(store.fields)}")
    return (*(store.fields[name] for name in names if name != spec.name), spec)


def refuse_unfinished(folder: Path) -> None:
    """No field is added while a prepare waits to be continued.

    Raises:
        StoreError: one does; its journal stands there.
    """
    if journals.find(folder) is not None:
        raise StoreError(
            f"{folder} has an unfinished prepare: what it has made so far is without the new field and would "
            "not fit the other samples. Run the same 'flatout prepare' again to finish it, then add the field"
        )


def add_field(
    store: StoreReader,
    folder: Path,
    spec: FieldSpec,
    values: Array,
    keep: Sequence[str] | None = None,
    origin: Mapping[str, Any] | None = None,
    progress: Progress = Silent(),  # noqa: B008  stateless
) -> StoreMeta:
    """Write the store with one field more into `folder`, which may be its own. Whoever calls holds its lock.

    Args:
        spec: the new field, of one shape and neither encoded nor compressed.
        values: (samples, *shape): what each sample has in it, in index order.
        keep: fields that go along; all by default. One of the new field's name is replaced.
        origin: what made the values, for the record.

    Raises:
        ConfigError: as `extended_fields`. StoreCorruptError: a sample is damaged.
        StoreSpaceError, StoreError: the disk is full or fails; a prepare is unfinished in `folder`.
    """
    refuse_unfinished(folder)
    fields = extended_fields(store, spec, keep)
    with disk_errors(folder):
        (folder / SHARD_FOLDER).mkdir(parents=True, exist_ok=True)
        check_free_space(folder, _num_bytes(store, fields, values))
        index = read_index(store.index_path, num_rows=len(store))
        progress.begin("write", len(store))
        made: list[ShardMeta] = []
        try:
            index = _write_shards(store, folder, fields, values, index, made, progress)
            return _commit(store, folder, fields, made, index, origin)
        except BaseException:
            _remove(folder, made)
            raise


def _num_bytes(store: StoreReader, fields: Sequence[FieldSpec], values: Array) -> int:
    share = (len(fields) - 1) / max(len(store.fields), 1)
    return int(sum(shard.size for shard in store.meta.shards) * min(share, 1.0)) + values.nbytes


def _write_shards(
    store: StoreReader,
    folder: Path,
    fields: Sequence[FieldSpec],
    values: Array,
    index: Any,
    made: list[ShardMeta],
    progress: Progress,
) -> Any:
    """One new shard for each old one, without its dead rows; the index with their places and digests out."""
    numbers, rows = index["shard"].to_numpy(), index["row"].to_numpy().copy()
    digests = index["digest"].to_numpy().copy()
    is_own = folder.resolve() == store.folder.resolve()
    first = _next_number(store.meta.shards) if is_own else 0
    for number, positions in enumerate(rows_by_shard(numbers, len(store.meta.shards))):
        if not len(positions):  # nothing names it any more
            made.append(store.meta.shards[number])
            continue
        positions = positions[np.argsort(rows[positions], kind="stable")]
        writer = _ShardCopy(store, number, fields, values)
        made.append(writer.write(folder / SHARD_FOLDER, first + number, positions, rows[positions]))
        rows[positions] = np.arange(len(positions), dtype=rows.dtype)
        digests[positions] = writer.digests
        progress.advance(len(positions))
    for name, column in (("row", rows), ("digest", digests)):
        index = index.set_column(index.schema.get_field_index(name), name, pa.array(column))
    return index


class _ShardCopy:
    """Copies live rows of one shard."""

    def __init__(self, store: StoreReader, number: int, fields: Sequence[FieldSpec], values: Array) -> None:
        self._shard = store.shard(number)
        self._fields = fields
        self._values = values
        self.digests: list[int] = []

    def write(self, folder: Path, number: int, positions: Array, rows: Array) -> ShardMeta:
        writer = ShardWriter(self._fields)
        keys = self._shard.keys()
        for position, row in zip(positions.tolist(), rows.tolist(), strict=True):
            sample = self._extended(stored_sample(self._shard, row, keys[row]), position)
            self.digests.append(sample.digest())
            writer.append(sample)
        return writer.write(folder, number)

    def _extended(self, sample: EncodedSample, position: int) -> EncodedSample:
        new = self._fields[-1]
        kept = [spec.name for spec in self._fields[:-1]]
        added = np.asarray(self._values[position], new.stored_dtype, order="C")
        stored = {name: sample.stored[name] for name in kept} | {new.name: added}
        scales = {name: scale for name, scale in sample.scales.items() if name in kept}
        return EncodedSample.of(sample.key, sample.key_hash, sample.part, stored, scales)


def _commit(
    store: StoreReader,
    folder: Path,
    fields: tuple[FieldSpec, ...],
    shards: Sequence[ShardMeta],
    index: Any,
    origin: Mapping[str, Any] | None,
) -> StoreMeta:
    """Index and companions, then the root: what made the other fields stays on record as it was."""
    schema = index_schema(fields)
    index, live = renumbered(index.select(schema.names).cast(schema), shards)
    name, digest = write_index(folder, index)
    write_view(folder, fields, live, index, store.meta.splits)
    identity = content_hash(index["key"], index["digest"].to_numpy())
    if folder.resolve() != store.folder.resolve():
        for other in (QUARANTINE, STATS):
            if (store.folder / other).exists():
                shutil.copyfile(store.folder / other, folder / other)
    _replace(folder / STATS, lambda facts: {**facts, "content_hash": identity})
    files = {
        other: hash_file(folder / other) for other in (VIEW, QUARANTINE, STATS) if (folder / other).exists()
    }
    settings = dict(store.meta.settings)
    if origin is not None:
        settings[ADDED] = {**settings.get(ADDED, {}), fields[-1].name: dict(origin)}
    meta = replace(
        store.meta,
        settings=settings,
        fields=fields,
        shards=live,
        index=name,
        index_blake3=digest,
        content_hash=identity,
        files=files,
    )
    save_metadata(folder, meta)
    settle(folder)
    return meta


def _replace(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Another content for the stats, if there are any."""
    if path.exists():
        facts = change(json.loads(path.read_bytes()))
        replace_companion(path.parent, path.name, (json.dumps(facts, indent=1) + "\n").encode())


def _remove(folder: Path, made: Sequence[ShardMeta]) -> None:
    """Take back the shards of an attempt that failed, unless a root names them by now."""
    named: set[str] = set()
    with suppress(StoreError):
        named = {shard.file for shard in load_metadata(folder).shards}
    for shard in made:
        if shard.file not in named:
            (folder / SHARD_FOLDER / shard.file).unlink(missing_ok=True)


def _next_number(shards: Sequence[ShardMeta]) -> int:
    return 1 + max((int(shard.file.partition("-")[0]) for shard in shards), default=-1)
