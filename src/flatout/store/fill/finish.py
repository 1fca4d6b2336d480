"""Finish: a filled cache becomes a normal store, in the dataset's order, that every other part can open."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from flatout.source import DatasetMaker, key_hashes, manifest_of_range, scan_rows
from flatout.store.commit import commit
from flatout.store.fill.head import Head
from flatout.store.fill.item import common_shape, sample_of
from flatout.store.fill.known import Known
from flatout.store.fill.log import CacheLog, Entry, Segment
from flatout.store.job import Job
from flatout.store.metadata import SHARD_FOLDER
from flatout.store.samples import samples_of_shards
from flatout.store.shard_writer import EncodedSample, ShardWriter
from flatout.store.start import row_table
from flatout.store.statistics import RunStats
from flatout.store.versions import with_records
from flatout.types import FieldSpec

logger = logging.getLogger("flatout.cache")

SHARD_BYTES = 64 << 20
SMALL_BYTES = 8 << 20
MAX_SMALL = 64
"""More segments than this under 8 MiB (a slow dataset, many workers) are joined."""
LEFTOVER_S = 3600.0
"""A file without a line in the log is being written, unless it is this old."""
SPLIT = "train"
"""The index wants a split; a dataset is one as a whole."""


def finish(folder: Path, head: Head, known: Known, log: CacheLog) -> None:
    """Commit a root over all items. The caller owns the store's lock and has read the log.

    Items of several structures have no common fields: then there is no root, and the log goes on serving.

    Raises:
        OSError, StoreError: the disk is full, or a segment is damaged. Nothing is lost.
    """
    live = known.live()
    forms = {segment.form for segment in live.values()}
    if len(forms) != 1:
        logger.info("%s: items of %d structures stay a cache, no store is made of them", folder, len(forms))
        return
    fields = _common_fields(list(live.values()))
    stale = _stale(live, fields)
    segments = [segment for number, segment in live.items() if number not in stale]
    gone = tuple(live[number].meta.file for number in stale)
    if stale:
        made = tuple(_rewritten(folder, known, stale, fields, log.num_lines))
        log.append(Entry(drop=gone, add=made))
        segments += made
    content_hash = _commit(folder, head, fields, segments)
    log.append(Entry(complete=content_hash, form=forms.pop()))
    _sweep(folder, {segment.meta.file for segment in segments}, {*gone, *known.gone})


def _sweep(folder: Path, live: set[str], gone: set[str]) -> None:
    """Delete what nobody names: dropped segments, and what killed processes left unfinished long ago."""
    old_s = time.time() - LEFTOVER_S
    for path in (folder / SHARD_FOLDER).iterdir():
        with suppress(OSError):
            if path.name not in live and (path.name in gone or path.stat().st_mtime < old_s):
                path.unlink()


def _common_fields(segments: Sequence[Segment]) -> tuple[FieldSpec, ...]:
    """Fields that hold every segment's items: an axis that differs anywhere varies."""
    columns = zip(*(segment.fields for segment in segments), strict=True)
    return tuple(
        FieldSpec(
            name=specs[0].name,
            kind=specs[0].kind,
            dtype=specs[0].dtype,
            shape=common_shape([spec.shape for spec in specs]),
            encoding=specs[0].encoding,
        )
        for specs in columns
    )


def _stale(live: dict[int, Segment], fields: tuple[FieldSpec, ...]) -> list[int]:
    """Segments to write anew: of other fields, or small ones if there are many."""
    small = [number for number, segment in live.items() if segment.meta.size < SMALL_BYTES]
    others = [number for number, segment in live.items() if segment.fields != fields]
    return sorted({*others, *(small if len(small) > MAX_SMALL else [])})


def _rewritten(
    folder: Path, known: Known, stale: Sequence[int], fields: tuple[FieldSpec, ...], number: int
) -> Iterator[Segment]:
    """The items of these segments in new ones; every sample is checked on the way."""
    names = [spec.name for spec in fields]
    waiting: list[EncodedSample] = []
    form, num_bytes = "", 0
    for index in known.indices_in(stale).tolist():
        form, arrays = known.read(index)
        waiting.append(sample_of(index, names, arrays))
        num_bytes += waiting[-1].num_bytes
        if num_bytes >= SHARD_BYTES:
            yield _written(folder, number, fields, form, waiting)
            waiting, num_bytes, number = [], 0, number + 1
    if waiting:
        yield _written(folder, number, fields, form, waiting)


def _written(
    folder: Path, number: int, fields: tuple[FieldSpec, ...], form: str, samples: list[EncodedSample]
) -> Segment:
    writer = ShardWriter(fields)
    for sample in sorted(samples, key=lambda sample: int(sample.key)):
        writer.append(sample)
    return Segment(writer.write(folder / SHARD_FOLDER, number), fields, form)


def _commit(folder: Path, head: Head, fields: tuple[FieldSpec, ...], segments: Sequence[Segment]) -> str:
    """Index, view and root, as a prepare of the dataset would write them; the content hash."""
    job = _job(head)
    shards = [segment.meta for segment in segments]
    samples, positions = _first_of_each(samples_of_shards(folder, shards, fields))
    states = scan_rows(job.manifest, job.columns, allow_outside=False, checksum=False, content_rows=None)
    samples = with_records(samples, positions, row_table(job.key_hashes, states))
    stats = RunStats.collect(
        receipts=(),
        num_samples=samples.num_rows,
        unchanged=0,
        removed=0,
        failed=0,
        bytes_in=0,
        wall_s=0.0,
        num_workers=0,
    )
    return commit(folder, job, fields, shards, samples, positions, (), stats.to_json()).content_hash


def _job(head: Head) -> Job:
    manifest = manifest_of_range(head.num_items)
    hashes = key_hashes(manifest.keys)
    return Job(
        manifest=manifest,
        key_hashes=hashes,
        maker=DatasetMaker(None),
        sections={},
        fingerprint=head.fingerprint,
        columns=["index"],
        splits=np.full(head.num_items, SPLIT),
        groups=hashes,
    )


def _first_of_each(samples: Any) -> tuple[Any, Any]:
    """One sample an item, in the dataset's order: of those stored twice, the first."""
    positions = samples["key"].to_numpy(zero_copy_only=False).astype(np.int64)
    unique, first = np.unique(positions, return_index=True)
    return samples.take(first), unique
