"""flatout's own measurements, as they run inside a process of their own."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from flatout.bench.cases import CASES
from flatout.config import Config, load_config
from flatout.source import SampleMaker, Sight, make_sighter, scan_rows
from flatout.store import block as blocks
from flatout.store.column import SlabColumn, Slabs
from flatout.store.files import sync_file
from flatout.store.job import Job as PrepareJob
from flatout.store.job import job_from_config
from flatout.store.making import make_samples
from flatout.store.prepare import PrepareOptions, prepare
from flatout.store.process import WorkerProcess
from flatout.store.reader import StoreReader
from flatout.store.shard_file import write_hashed
from flatout.store.task import SHARD_BYTES
from flatout.types import Array, FieldSpec, Row

if TYPE_CHECKING:
    from flatout.bench.job import Job

Work = Callable[[], dict[str, Any]]


def settings(job: Job) -> Config:
    """The config of a case, as a user would write it."""
    return load_config(
        {
            "manifest": job.manifest,
            "base_path": job.base,
            "key_column": "key",
            "fields": {"x": dict(CASES[job.case].field)},
            "preprocessed_data_dir": job.out,
            "num_workers": job.num_workers,
        }
    )


def plan_prepare(job: Job) -> Work:
    """`flatout prepare`, from the manifest to the committed store; workers start inside it."""
    config = settings(job)

    def work() -> dict[str, Any]:
        options = PrepareOptions(safe=job.is_safe)
        stats = prepare(config, lambda classes: job_from_config(config, classes), options)
        if stats.failed:
            raise RuntimeError(f"{stats.failed} rows failed: {stats.bad[0]}")
        return {
            "processed": stats.processed,
            "bytes_out": stats.bytes_out,
            "peak": stats.peak_worker_bytes,
            "stages": dict(stats.seconds),
        }

    return work


class TimedMaker:
    """A maker that adds up the processor time of decoding and transforming."""

    def __init__(self, maker: SampleMaker) -> None:
        self.cpu_s = 0.0
        self._maker = maker

    def make(self, row: Row) -> Any:
        started = time.process_time()
        try:
            return self._maker.make(row)
        finally:
            self.cpu_s += time.process_time() - started

    def path_of(self, row: Row) -> str:
        return self._maker.path_of(row)


def plan_decode(job: Job) -> Work:
    """The same prepare in one process: what decoding and transforming alone take of its processor time."""
    config = settings(job)
    makers: list[TimedMaker] = []

    def timed_job(classes: Mapping[str, Sequence[str]]) -> PrepareJob:
        found = job_from_config(config, classes)
        # Libraries are imported at the first row: once in a process, while these rows stand for many more.
        found.maker.make(found.manifest.rows(range(1))[0])
        makers.append(TimedMaker(found.maker))
        return replace(found, maker=makers[-1])

    def work() -> dict[str, Any]:
        stats = prepare(config, timed_job)
        return {"cpu_s": makers[-1].cpu_s, "processed": stats.processed}

    return work


def plan_bare(job: Job) -> Work:
    """A part of the work as one process alone would do it: make samples, write and sync them behind.

    Files of the size of a shard, written as prepare does; no messages, index, nor anybody to report to. With
    these decoders hardly a way to fill a disk is faster. Safe: also what a store has to know of each sample and
    file: what each file was when it was read, and whether it still is, whether all numbers are finite, its crc,
    identity and key, the hash of what is written.
    """
    config = settings(job)
    found = job_from_config(config)
    sighter = make_sighter(found.manifest, found.columns, allow_outside=False, checksum=False)
    rows = found.manifest.rows(range(len(found.manifest))[job.part[0] :: job.part[1]])
    folder = Path(job.out)
    folder.mkdir()
    ((_, first),) = make_samples(found.maker, rows[0])
    fields = [FieldSpec(name, "array", array.dtype.name, array.shape) for name, array in first.items()]
    (row_bytes,) = map(blocks.row_bytes, fields)
    most = max(1, blocks.block_rows(row_bytes))

    def work() -> dict[str, Any]:
        slabs, synced = Slabs(), []
        kept, block = SlabColumn(slabs), None
        sights: list[Sight] = []
        found_files = sighter.found()
        with ThreadPoolExecutor(1) as disk:
            for at, row in enumerate(rows):
                if job.is_safe:
                    row.found = found_files
                if block is None:
                    room = kept.room(row_bytes, most)
                    has_room = room is not None and len(room) == most * row_bytes
                    block = blocks.Block(fields, most, {fields[0].name: room if has_room else None})
                ((_, sample),) = make_samples(found.maker, row)
                if not block.add(at, row, sample):
                    raise RuntimeError(f"row {row.key} has another form than the first")
                if block.is_full or row is rows[-1]:
                    if job.is_safe:
                        sights += sighter.sights([each for _, each in block.rows], found_files)
                        found_files = sighter.found()
                    kept.append(_known(fields, block, job.is_safe))
                    block = None
                if kept.num_bytes >= SHARD_BYTES or row is rows[-1]:
                    synced.append(disk.submit(_write_synced, folder / row.key, kept, slabs, job.is_safe))
                    kept = SlabColumn(slabs)
        for written in synced:
            written.result()
        return {}

    return work


def _known(fields: Sequence[FieldSpec], block: blocks.Block, is_safe: bool) -> Array:
    """The samples of a block; safe: when all is known of them that a store has to know."""
    (name,) = (spec.name for spec in fields)
    encoded = block.encode(() if is_safe else (name,), safe=is_safe)
    if encoded is None:
        raise RuntimeError("a sample has values that are not finite")
    if is_safe:
        blocks.plain_digests(fields, encoded.crcs)
    return encoded.stored[name]


def _write_synced(path: Path, kept: SlabColumn, slabs: Slabs, is_safe: bool) -> None:
    """A new file of these bytes, on the disk."""
    write_hashed(path, (buffer.data for buffer in kept.buffers()), safe=is_safe, past_cache=True)
    slabs.give(kept.clear())
    with open(path, "rb+") as file:
        sync_file(file.fileno())


def plan_scan(job: Job) -> Work:
    """Looking at every row's file, as a prepare does that finds nothing to do."""
    config = settings(job)
    found = job_from_config(config)

    def work() -> dict[str, Any]:
        scan_rows(found.manifest, found.columns, allow_outside=False, checksum=False, content_rows=None)
        return {"rows": len(found.manifest)}

    return work


def plan_open(job: Job) -> Work:
    """Opening a store with its numeric index: seconds, and resident memory that stays."""
    process = psutil.Process()

    def work() -> dict[str, Any]:
        gc.collect()
        before, started = process.memory_info().rss, time.perf_counter()
        store = StoreReader(job.out)
        numbers = store.numbers
        open_s = time.perf_counter() - started
        gc.collect()
        grown = process.memory_info().rss - before
        return {"open_s": open_s, "bytes": grown, "samples": len(numbers["row"])}

    return work


def plan_idle(job: Job) -> Work:
    """Resident memory of a worker that has started and done nothing."""

    def work() -> dict[str, Any]:
        worker = WorkerProcess([], timeout_s=60.0, max_bytes=1 << 40)
        try:
            worker.ask("settle")
            (child,) = psutil.Process().children()
            return {"idle_bytes": child.memory_info().rss}
        finally:
            worker.close()

    return work


def largest_shard(out: Path) -> tuple[int, int]:
    """(bytes of a store's largest shard, mean bytes of its samples)."""
    meta = StoreReader(out).meta
    shards = [shard.size for shard in meta.shards]
    return max(shards), round(sum(shards) / max(meta.num_samples, 1))
