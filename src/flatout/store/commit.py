"""Commit: finished shards become the store's next version. The root is swapped last."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flatout.source import hash_file
from flatout.store import journal
from flatout.store.checks import content_hash
from flatout.store.companions import has_pending, replace_companion, settle
from flatout.store.index import index_schema, write_index
from flatout.store.job import Job
from flatout.store.metadata import ShardMeta, StoreMeta, save_metadata
from flatout.store.receipt import BadRow
from flatout.store.samples import in_manifest_order, refuse_twins, renumbered
from flatout.store.versions import Version
from flatout.store.view import VIEW, open_shards, view_image
from flatout.types import Array, FieldSpec

QUARANTINE = "quarantine.jsonl"
STATS = "preprocessing_stats.json"
SPLIT_ORDER = ("train", "val", "test")


def commit(
    folder: Path,
    job: Job,
    fields: Sequence[FieldSpec],
    shards: Sequence[ShardMeta],
    samples: Any,
    positions: Array,
    bad: Sequence[BadRow],
    stats: Mapping[str, Any],
    before: Version | None = None,
) -> StoreMeta:
    """Write index, view, quarantine and stats, then the root that names them.

    Args:
        samples: key, place, digest, lengths and records of every live sample.
        positions: manifest position of each of them.
        before: the version there was; if nothing differs from it, nothing is written.
    """
    samples, positions = in_manifest_order(samples, positions)
    samples, live_shards = renumbered(samples, shards)
    splits, codes = _split_codes(job.splits)
    samples = _complete(samples, fields, codes[positions], job.groups[positions])
    refuse_twins(samples)
    is_same = before is not None and _is_same(before, job, fields, samples, splits, bad)
    has_companions = all((folder / name).is_file() for name in (VIEW, QUARANTINE, STATS))
    if is_same and has_companions and not has_pending(folder):
        journal.discard(folder)
        return before.meta  # type: ignore[return-value, union-attr]  # _is_same has seen it
    readers = open_shards(folder, fields, live_shards)
    with ThreadPoolExecutor(2) as beside:  # in memory alone: files are written in one order, by one thread
        image = beside.submit(view_image, fields, readers, samples, splits)
        hashed = beside.submit(content_hash, samples["key"], samples["digest"].to_numpy())
        index, index_hash = write_index(folder, samples)
    identity = hashed.result()
    replace_companion(folder, VIEW, image.result())
    write_quarantine(folder, bad)
    facts = json.dumps({**stats, "content_hash": identity}, indent=1) + "\n"
    replace_companion(folder, STATS, facts.encode())
    meta = StoreMeta(
        num_samples=samples.num_rows,
        splits=splits,
        fields=tuple(fields),
        index=index,
        index_blake3=index_hash,
        content_hash=identity,
        shards=live_shards,
        fingerprint=job.fingerprint.to_json(),
        settings=job.settings,
        files={name: hash_file(folder / name) for name in (VIEW, QUARANTINE, STATS)},
        num_bad=len(bad),
    )
    save_metadata(folder, meta)
    settle(folder)
    journal.discard(folder)
    return meta


def _is_same(
    before: Version,
    job: Job,
    fields: Sequence[FieldSpec],
    samples: Any,
    splits: Sequence[str],
    bad: Sequence[BadRow],
) -> bool:
    """Whether the version there was is the one to be written."""
    return (
        before.meta is not None
        and not bad
        and not before.meta.num_bad
        and before.fields == tuple(fields)
        and before.meta.splits == splits
        and before.meta.settings == json.loads(json.dumps(job.settings))
        and before.fingerprint.digest == job.fingerprint.digest
        and bool(samples.equals(before.samples))
    )


def write_quarantine(folder: Path, bad: Sequence[BadRow]) -> None:
    """One JSON line a row that gave no sample, in order of key."""
    lines = [json.dumps(asdict(row), ensure_ascii=False) for row in sorted(bad, key=lambda row: row.key)]
    replace_companion(folder, QUARANTINE, "".join(f"{line}\n" for line in lines).encode())


def read_quarantine(folder: Path) -> dict[str, str]:
    """Keys of the rows that gave no sample, and the stage at which each failed."""
    path = folder / QUARANTINE
    # Not splitlines: a key may hold characters that it takes for the end of a line.
    lines = path.read_bytes().decode().split("\n") if path.exists() else []
    rows = [json.loads(line) for line in lines if line]
    return {row["key"]: row.get("stage", "") for row in rows}


def _split_codes(names: Any) -> tuple[tuple[str, ...], Array]:
    """Split names in a fixed order, and each row's number among them."""
    texts = np.asarray(names).astype(str, copy=False)
    ordered = split_order(np.unique(texts).tolist())
    codes = np.zeros(len(texts), np.int8)
    for at, name in enumerate(ordered):
        codes[texts == name] = at
    return tuple(ordered), codes


def split_order(names: Iterable[str]) -> list[str]:
    """train, val, test first, others by name."""
    return sorted(names, key=lambda name: (SPLIT_ORDER.index(name) if name in SPLIT_ORDER else 99, name))


def _complete(samples: Any, fields: Sequence[FieldSpec], splits: Array, groups: Array) -> Any:
    """The index table: every column of the schema, in its order and type."""
    for name, column in (("split", splits), ("group", groups)):
        if name in samples.column_names:
            samples = samples.drop_columns([name])
        samples = samples.append_column(name, pa.array(column))
    schema = index_schema(fields)
    return samples.select(schema.names).cast(schema).combine_chunks()
