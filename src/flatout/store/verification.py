"""Verify: is every byte of a store what was written? Hashes, crcs, index against shards, root against index."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flatout.errors import StoreCorruptError, StoreError
from flatout.source import hash_file
from flatout.store import layout
from flatout.store.checks import content_hash, hash_shard
from flatout.store.commit import QUARANTINE, STATS
from flatout.store.companions import pending_hashes
from flatout.store.index import index_schema, length_column, read_index, rows_by_shard
from flatout.store.metadata import ROOT, SHARD_FOLDER, StoreMeta, is_replaced, load_metadata
from flatout.store.progress import Progress, Silent
from flatout.store.shard_file import check_through_libhdf5
from flatout.store.shard_reader import ShardReader
from flatout.store.view import VIEW
from flatout.types import Array

MAX_READS = 3
"""Times that a store is read while prepares replace it."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong: which file, and where it can be told, which sample and field."""

    file: str
    reason: str
    key: str | None = None
    field: str | None = None


@dataclass(frozen=True)
class VerifyReport:
    """True if nothing is damaged."""

    store: str
    num_samples: int
    num_shards: int
    num_bytes: int
    damage: tuple[Damage, ...]
    content_hash: str = ""

    def __bool__(self) -> bool:
        return not self.damage

    @property
    def damaged_shards(self) -> list[str]:
        """Names of the shard files that are damaged or missing."""
        return sorted({d.file.rpartition("/")[2] for d in self.damage if d.file.startswith(f"{SHARD_FOLDER}/")})

    def to_json(self) -> dict[str, Any]:
        return {"ok": bool(self), **asdict(self)}


@dataclass(frozen=True, slots=True)
class _Places:
    """What the index says of each shard's samples."""

    columns: dict[str, Array]
    """Numbers that a shard's tables have, too, and `row`."""
    keys: Any
    positions: list[Array]
    """Positions in the index of each shard's samples."""

    @classmethod
    def of(cls, index: Any, meta: StoreMeta) -> _Places:
        lengths = [length_column(spec.name) for spec in meta.fields if spec.is_ragged]
        columns = {name: index[name].to_numpy() for name in ("row", "key_hash", "digest", *lengths)}
        return cls(columns, index["key"], rows_by_shard(index["shard"].to_numpy(), len(meta.shards)))


def verify(folder: Path, progress: Progress = Silent()) -> VerifyReport:  # noqa: B008  stateless
    """Read the whole store and compare it with what it says of itself.

    A prepare or a compaction may go on meanwhile: if a new root stands there afterwards, what seemed damaged
    may be what was replaced, and everything is read again.

    Raises:
        StoreMissingError, StoreVersionError: there is nothing here that could be verified.
        StoreError: it changed each time it was read.
    """
    for _ in range(MAX_READS):
        try:
            meta = load_metadata(folder)
        except StoreCorruptError as error:
            return VerifyReport(str(folder), 0, 0, 0, (Damage(ROOT, str(error)),))
        report = _verify_version(folder, meta, progress)
        if report or not is_replaced(folder, meta):
            return report
        progress.say("the store was prepared again meanwhile; reading the new version")
    raise StoreError(
        f"{folder} changed {MAX_READS} times while it was read; verify it when no prepare is running"
    )


def _verify_version(folder: Path, meta: StoreMeta, progress: Progress) -> VerifyReport:
    damage = list(_companions(folder, meta))
    index, index_damage = _index(folder, meta)
    damage += index_damage
    progress.begin("verify", sum(shard.rows for shard in meta.shards))  # deleted and replaced ones, too
    with ThreadPoolExecutor() as pool:  # hashing and crcs release the lock on large buffers
        for meta_damage, shard in zip(
            pool.map(lambda n: _shard(folder, meta, n, index), range(len(meta.shards))),
            meta.shards,
            strict=True,
        ):
            damage += meta_damage
            progress.bad(max(len({d.key for d in meta_damage if d.key}), int(bool(meta_damage))))
            progress.advance(shard.rows)
    return VerifyReport(
        store=str(folder),
        num_samples=meta.num_samples,
        num_shards=len(meta.shards),
        num_bytes=sum(shard.size for shard in meta.shards),
        damage=tuple(damage),
        content_hash=meta.content_hash,
    )


def _companions(folder: Path, meta: StoreMeta) -> Iterator[Damage]:
    """View, quarantine and stats are whole, too; a prepare that was cut off or goes on may have newer ones."""
    for name in (VIEW, QUARANTINE, STATS):
        try:
            found = hash_file(folder / name)
            # Asked after the file was read: a prepare announces a content before it puts it there.
            if found != meta.files.get(name) and found not in pending_hashes(folder).get(name, ()):
                yield Damage(name, "its hash differs from the recorded one")
        except OSError as error:
            yield Damage(name, error.strerror or str(error))


def _index(folder: Path, meta: StoreMeta) -> tuple[_Places | None, list[Damage]]:
    """The index, if it is whole, and what is wrong with it."""
    try:
        if hash_file(folder / meta.index) != meta.index_blake3:
            return None, [Damage(meta.index, "its hash differs from the recorded one")]
        index = read_index(folder / meta.index, num_rows=meta.num_samples)
        if index.schema != index_schema(meta.fields) or any(column.null_count for column in index.columns):
            return None, [Damage(meta.index, "it has other columns than an index has")]
        return _Places.of(index, meta), list(_index_against_root(meta, index))
    except (OSError, StoreError) as error:
        return None, [Damage(meta.index, _reason(error))]


def _index_against_root(meta: StoreMeta, index: Any) -> Iterator[Damage]:
    for name, known in (("shard", meta.shards), ("split", meta.splits)):
        numbers = index[name].to_numpy()
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(known):
            yield Damage(meta.index, f"it names a {name} that the root does not have")
    identity = content_hash(index["key"], index["digest"].to_numpy())
    if identity != meta.content_hash:
        yield Damage(meta.index, "its samples' content hash differs from the root's")


def _shard(folder: Path, meta: StoreMeta, number: int, index: _Places | None) -> list[Damage]:
    """Everything wrong with one shard; damaged samples by name where they can be told."""
    shard = meta.shards[number]
    path, name = folder / SHARD_FOLDER / shard.file, f"{SHARD_FOLDER}/{shard.file}"
    try:
        reader = ShardReader(path, shard, meta.fields)
        is_whole = hash_shard(path) == shard.xxh3
        damage = [Damage(name, "crc differs", key, field) for key, field in _bad_samples(reader)]
        if not is_whole:
            return damage or [
                Damage(name, "its hash differs from the recorded one, though every sample is whole")
            ]
        if index is not None:
            damage += _against_index(name, reader, index, index.positions[number])
        check_through_libhdf5(path, meta.fields, shard)
    except (OSError, StoreError) as error:
        return [Damage(name, _reason(error)), *_lost(name, index, number)]
    return damage


def _lost(name: str, index: _Places | None, number: int) -> Iterator[Damage]:
    """The samples of a shard that cannot be read, as far as the index knows them."""
    if index is not None:
        for position in index.positions[number].tolist():
            yield Damage(name, "its shard cannot be read", index.keys[position].as_py())


def _reason(error: Exception) -> str:
    """What is wrong, without the file, which the report names, or advice: a repair may be under way."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return error.reason if isinstance(error, StoreCorruptError) else str(error)


def _bad_samples(reader: ShardReader) -> Iterator[tuple[str, str]]:
    keys: list[str] | None = None
    for field in reader.fields:
        for row in reader.bad_rows(field):
            keys = keys or reader.keys()
            yield keys[row], field


def _against_index(name: str, reader: ShardReader, index: _Places, mine: Array) -> Iterator[Damage]:
    """The index and the shard agree on which sample is where, and on its content."""
    if not len(mine):
        return
    at = index.columns["row"][mine]
    if at.min() < 0 or at.max() >= len(reader) or len(np.unique(at)) < len(at):
        yield Damage(name, "the index names rows that the shard does not have, or one twice")
        return
    pairs = [
        (reader.tables[layout.KEY_HASH], "key_hash", "is another sample"),
        (reader.tables[layout.DIGEST], "digest", "has other content"),
    ]
    ragged = [name for name, spec in reader.fields.items() if spec.is_ragged]
    pairs += [(reader.lengths(name), length_column(name), "has another length") for name in ragged]
    for table, column, what in pairs:
        differs = mine[table[at] != index.columns[column][mine]]
        for position in differs.tolist():
            yield Damage(name, f"the sample {what} than the index says", index.keys[position].as_py())
