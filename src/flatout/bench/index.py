"""Opening a store of many tiny samples: seconds, and memory a sample."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from flatout.bench.job import Job, run, run_together
from flatout.bench.overhead import Setting
from flatout.source import hash_key
from flatout.store.checks import content_hash
from flatout.store.index import index_schema, write_index
from flatout.store.metadata import SHARD_FOLDER, ShardMeta, StoreMeta, save_metadata, shard_meta
from flatout.store.plan import rows_per_shard
from flatout.store.samples import samples_of_shards
from flatout.store.shard_writer import ShardWriter
from flatout.types import FieldSpec

FIELDS = (FieldSpec("x", "scalar", "float32", ()),)
BYTES_PER_SAMPLE = 4


def measure_index(num_samples: int, setting: Setting) -> dict[str, Any]:
    """Build a store of `num_samples` numbers, then open it in fresh processes."""
    out = setting.scratch / "index"
    try:
        setting.say(f"index: building a store of {num_samples:,} samples")
        build(out, num_samples, setting.num_workers)
        found = [run(Job("open", out=str(out))).figures for _ in range(max(setting.rounds, 1))]
    finally:
        shutil.rmtree(out, ignore_errors=True)
    return {
        "samples": num_samples,
        "open_s": median(each["open_s"] for each in found),
        "bytes_per_sample": median(each["bytes"] for each in found) / num_samples,
    }


def build(out: Path, num_samples: int, num_workers: int) -> None:
    """A whole store but for its view: shards by several processes, then index and root."""
    (out / SHARD_FOLDER).mkdir(parents=True)
    parts = list(range(max(1, num_workers)))
    jobs = [Job("build", out=str(out), part=(part, len(parts)), num_samples=num_samples) for part in parts]
    built = [shard for outcome in run_together(jobs) for shard in outcome.figures["shards"]]
    shards = sorted((shard_meta(shard) for shard in built), key=lambda shard: shard.file)
    commit(out, shards)


def build_shards(job: Job) -> dict[str, Any]:
    """Every n-th shard, written as prepare writes it."""
    part, num_parts = job.part
    step = rows_per_shard(BYTES_PER_SAMPLE, job.num_samples)
    starts = list(enumerate(range(0, job.num_samples, step)))[part::num_parts]
    return {"shards": [asdict(_shard(job, *start, step)) for start in starts]}


def _shard(job: Job, number: int, first: int, step: int) -> ShardMeta:
    writer = ShardWriter(FIELDS)
    for at in range(first, min(first + step, job.num_samples)):
        key = f"{at:09d}"
        writer.append(writer.encode(key, hash_key(key), -1, {"x": np.asarray(at, np.float32)}))
    return writer.write(Path(job.out) / SHARD_FOLDER, number)


def commit(out: Path, shards: Sequence[ShardMeta], fields: tuple[FieldSpec, ...] = FIELDS) -> None:
    """Index and root over the shards."""
    samples = samples_of_shards(out, shards, fields)
    schema = index_schema(fields)
    name, digest = write_index(out, pa.table(dict(_columns(samples, schema)), schema=schema))
    meta = StoreMeta(
        num_samples=samples.num_rows,
        splits=("train",),
        fields=fields,
        index=name,
        index_blake3=digest,
        content_hash=content_hash(samples["key"], samples["digest"].to_numpy()),
        shards=tuple(shards),
    )
    save_metadata(out, meta)


def _columns(samples: Any, schema: Any) -> Iterator[tuple[str, Any]]:
    """The index's columns: what the shards say, and constants for what only a manifest knows."""
    known = {"split": 0, "by_content": False, "size": 4, "mtime_ns": 0, "path": "", "fingerprint": 1}
    for field in schema:
        if field.name == "group":
            yield "group", samples["key_hash"]
        elif field.name in known:
            yield field.name, pa.repeat(pa.scalar(known[field.name], field.type), samples.num_rows)
        else:
            yield field.name, samples[field.name]
