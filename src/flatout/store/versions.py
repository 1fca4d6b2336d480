"""What a store already has: the committed version, and shards of a prepare that was cut off."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flatout.errors import StoreError, StoreMissingError
from flatout.store.fingerprint import Fingerprint
from flatout.store.index import read_index
from flatout.store.journal import Journal, recorded_rows
from flatout.store.metadata import SHARD_FOLDER, ShardMeta, StoreMeta, load_fields, load_metadata
from flatout.store.samples import RowFinder, empty_samples, row_hashes, samples_of_shards
from flatout.types import Array, FieldSpec

RECORD_COLUMNS = ("fingerprint", "by_content", "size", "mtime_ns", "path")
"""What the index records of a sample's row."""


@dataclass(frozen=True)
class Version:
    """Samples that exist in shards, with the state of their sources when they were made."""

    samples: Any
    shards: tuple[ShardMeta, ...]
    fields: tuple[FieldSpec, ...]
    fingerprint: Fingerprint
    meta: StoreMeta | None = None
    """The root, if this is a committed version."""

    @property
    def classes(self) -> dict[str, Sequence[str]]:
        return _classes(self.fields)

    @property
    def bytes_per_sample(self) -> float:
        return sum(shard.size for shard in self.shards) / max(sum(shard.rows for shard in self.shards), 1)

    @property
    def next_task(self) -> int:
        """A number that no shard has yet."""
        return 1 + max((int(shard.file.partition("-")[0]) for shard in self.shards), default=-1)


def committed(folder: Path, distrusted: Collection[str] = ()) -> Version | None:
    """The version that the root names; None if nothing was ever committed.

    Args:
        distrusted: shard files whose samples do not count.
    """
    try:
        meta = load_metadata(folder)
    except StoreMissingError:
        return None
    version = Version(
        read_index(folder / meta.index, num_rows=meta.num_samples),
        meta.shards,
        meta.fields,
        Fingerprint.from_json(meta.fingerprint),
        meta,
    )
    return _without(version, distrusted)


def broken_shards(folder: Path) -> frozenset[str]:
    """Shard files that the root names and that are missing or not of their size."""
    try:
        shards = load_metadata(folder).shards
    except StoreMissingError:
        return frozenset()
    sizes = {path.name: path.stat().st_size for path in (folder / SHARD_FOLDER).glob("*.h5")}
    return frozenset(shard.file for shard in shards if sizes.get(shard.file) != shard.size)


def classes_of_root(folder: Path) -> dict[str, Sequence[str]]:
    """Class lists of the store that stands here, whatever else of it is whole: their numbers never change."""
    return _classes(load_fields(folder))


def settings_of_root(folder: Path) -> Mapping[str, Any]:
    """What the store that stands here records of its config; nothing if there is none."""
    try:
        return load_metadata(folder).settings
    except StoreError:
        return {}


def _classes(fields: Sequence[FieldSpec]) -> dict[str, Sequence[str]]:
    """Class names of each label; none for labels that are numbers, which they then stay."""
    return {spec.name: spec.classes or () for spec in fields if spec.kind == "label"}


def _without(version: Version, distrusted: Collection[str]) -> Version:
    bad = [number for number, shard in enumerate(version.shards) if shard.file in distrusted]
    if not bad:
        return version
    good = ~np.isin(version.samples["shard"].to_numpy(), bad)
    return replace(version, samples=version.samples.filter(pa.array(good)))


def with_shards(
    folder: Path, version: Version | None, journal: Journal, shards: Sequence[ShardMeta]
) -> Version | None:
    """The version plus shards that a journal knows of but no root names."""
    rows = recorded_rows(journal)
    if not shards or rows is None or (version is not None and not _same_form(version, journal)):
        return version
    fingerprint = Fingerprint.from_json(journal.head.fingerprint)
    base = version or Version(empty_records(journal.head.fields), (), journal.head.fields, fingerprint)
    made = samples_of_shards(folder, shards, base.fields, first_shard=len(base.shards))
    finder = RowFinder(rows["key_hash"].to_numpy(), rows["key_hash"])
    positions = finder.positions(row_hashes(made))
    made = with_records(made.filter(pa.array(positions >= 0)), positions[positions >= 0], rows)
    samples = pa.concat_tables([base.samples.select(made.column_names), made])
    return replace(base, samples=samples, shards=(*base.shards, *shards))


def _same_form(version: Version, journal: Journal) -> bool:
    """Whether samples of both can stand in one index; class lists may have grown in between."""
    forms = [
        [replace(spec, classes=None) for spec in fields] for fields in (version.fields, journal.head.fields)
    ]
    return forms[0] == forms[1]


def known_classes(version: Version | None, journal: Journal) -> dict[str, Sequence[str]]:
    """Class lists that samples have been made with already, committed or not: they may only grow."""
    known = version.classes if version is not None else {}
    for spec in journal.head.fields:
        before = tuple(known.get(spec.name, ()))
        if spec.classes and spec.classes[: len(before)] == before:
            known[spec.name] = spec.classes
    return known


def with_records(samples: Any, positions: Any, rows: Any) -> Any:
    """Samples with what is recorded of their rows."""
    picked = rows.select(RECORD_COLUMNS).take(pa.array(np.asarray(positions)))
    for name in RECORD_COLUMNS:
        samples = samples.append_column(name, picked[name])
    return samples


def with_old_records(samples: Any, before: Any, are_old: Array) -> Any:
    """Samples of which some keep what was recorded of them before."""
    mask = pa.array(are_old)
    for name in RECORD_COLUMNS:
        at = samples.schema.get_field_index(name)
        samples = samples.set_column(at, name, pc.if_else(mask, before[name], samples[name]))
    return samples


def empty_records(fields: Sequence[FieldSpec]) -> Any:
    """No samples, with their records' columns."""
    kinds = {"fingerprint": pa.uint64(), "by_content": pa.bool_(), "size": pa.int64(), "mtime_ns": pa.int64()}
    table = empty_samples(fields)
    for name in RECORD_COLUMNS:
        table = table.append_column(name, pa.array([], kinds.get(name, pa.string())))
    return table
