"""Prepare: raw files in, a verified store out. Stop it anywhere; the same call continues.

scan -> compare with what is there -> plan -> make shards (journal) -> commit
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flatout.config import Config
from flatout.errors import ConfigError, PrepareError, StoreError, StoreSpaceError
from flatout.source import RowStates, hash_key, rows_that_moved, scan_rows
from flatout.store import journal as journals
from flatout.store.commit import commit
from flatout.store.engine import Engine, count_workers, make_engine
from flatout.store.files import remove_leftovers
from flatout.store.fingerprint import explain_difference
from flatout.store.job import Job, row_task
from flatout.store.journal import Journal, JournalHead
from flatout.store.limits import check_bad_fraction, check_free_space, free_bytes
from flatout.store.lock import locked
from flatout.store.log import log_to
from flatout.store.metadata import SHARD_FOLDER, ShardMeta
from flatout.store.plan import Plan, make_plan, rows_per_shard, stored_bytes_per_row
from flatout.store.progress import Progress, Silent
from flatout.store.samples import RowFinder, row_hashes, samples_of_shards, up_to_date
from flatout.store.specify import NUM_PROBED, Forms, specify
from flatout.store.statistics import RunStats
from flatout.store.task import BadRow, Receipt, TaskSetup
from flatout.store.versions import Version, committed, recovered, with_records, with_shards
from flatout.types import Array, FieldSpec

logger = logging.getLogger("flatout.prepare")


@dataclass(frozen=True)
class PrepareOptions:
    """How one prepare runs; nothing here changes a sample."""

    force: bool = False
    """Make every sample again."""
    accept_fingerprint: bool = False
    """Keep samples although the code or settings that made them changed."""
    distrusted: frozenset[str] = frozenset()
    """Shard files whose samples are made again (repair)."""
    recover_index: bool = False
    """The index is lost: take the samples from the shards themselves (repair)."""
    safe: bool = True
    """False: no hashes, crcs, syncs; only to measure what they cost."""


def prepare(
    config: Config,
    make_job: Callable[[Mapping[str, Sequence[str]]], Job],
    options: PrepareOptions = PrepareOptions(),  # noqa: B008  frozen
    progress: Progress = Silent(),  # noqa: B008  stateless
) -> RunStats:
    """Bring the store at `config.preprocessed_data_dir` up to date with its sources.

    Args:
        make_job: class lists of the store so far in, the job out.

    Raises:
        ConfigError, ManifestError: the settings or the manifest cannot be used.
        StoreLockedError, StoreSpaceError, TooManyBadError, PrepareError: as named.
    """
    if config.preprocessed_data_dir is None:
        raise ConfigError("no place for the store: set preprocessed_data_dir, or give --output-dir")
    folder = Path(config.preprocessed_data_dir)
    with _disk_errors(folder), locked(folder), log_to(folder):
        (folder / SHARD_FOLDER).mkdir(exist_ok=True)
        for place in (folder, folder / SHARD_FOLDER):
            remove_leftovers(place)
        return _Prepare(config, folder, options, progress).run(make_job)


class _Prepare:
    """One prepare under way; its steps in order."""

    def __init__(self, config: Config, folder: Path, options: PrepareOptions, progress: Progress) -> None:
        self._config = config
        self._folder = folder
        self._options = options
        self._progress = progress
        self._started = time.perf_counter()

    def run(self, make_job: Callable[[Mapping[str, Sequence[str]]], Job]) -> RunStats:
        is_fresh = self._options.force or self._options.recover_index
        version = None if is_fresh else committed(self._folder, self._options.distrusted)
        job = make_job(version.classes if version else {})
        for note in job.notes:
            self._say(note)
        journal = journals.find(self._folder)
        finder = RowFinder(job.key_hashes, job.manifest.keys)
        with make_engine(self._config, job.sys_path) as engine:
            states = self._scan(job, finder, version, journal)
            if self._options.recover_index:
                rows = row_table(job.key_hashes, states)
                version = recovered(self._folder, self._options.distrusted, rows)
            version = self._usable(version, job)
            start = self._resume(job, finder, states, version, journal)
            start = start or self._start(engine, job, finder, states, version, journal)
            receipts = self._make(engine, job, start)
        return self._commit(job, finder, states, start, receipts)

    def _scan(self, job: Job, finder: RowFinder, version: Version | None, journal: Journal | None) -> RowStates:
        """Look at the rows' files; those recorded by content are compared by content."""
        content = np.zeros(len(job.manifest), bool)
        recorded = [] if version is None else [(row_hashes(version.samples), version.samples)]
        rows = None if journal is None else journals.planned_rows(journal)
        if rows is not None:
            recorded.append((rows["key_hash"].to_numpy(), rows))
        for hashes, table in recorded:
            positions = finder.positions(hashes)
            known = (positions >= 0) & table["by_content"].to_numpy()
            content[positions[known]] = True
        return scan_rows(
            job.manifest,
            job.columns,
            allow_outside=self._config.allow_outside_base,
            checksum=self._config.checksum,
            content_rows=content,
        )

    def _usable(self, version: Version | None, job: Job) -> Version | None:
        """The committed version, unless what made it has changed since."""
        if version is None or version.fingerprint.digest == job.fingerprint.digest:
            return version
        changes = explain_difference(version.fingerprint, job.fingerprint)
        if self._options.accept_fingerprint:
            self._say(f"kept all samples although {'; '.join(changes)} (--accept-fingerprint)")
            return version
        self._say(f"making every sample again: {'; '.join(changes)} (--accept-fingerprint would keep them)")
        return None

    def _compare(
        self, finder: RowFinder, states: RowStates, version: Version | None, num_rows: int
    ) -> tuple[Array, Array, Array]:
        """(samples to keep, their manifest positions, rows to make)."""
        if version is None:
            kept, positions = np.empty(0, np.int64), np.empty(0, np.int64)
        else:
            found = finder.positions(row_hashes(version.samples))
            kept = np.flatnonzero(up_to_date(version.samples, found, states.fingerprints))
            kept, positions = _latest(version.samples, kept, found[kept])
        todo = np.setdiff1d(np.arange(num_rows), positions)
        if self._config.limit is not None:
            todo = todo[todo < self._config.limit]
        return kept, positions, todo

    def _resume(
        self, job: Job, finder: RowFinder, states: RowStates, version: Version | None, journal: Journal | None
    ) -> _Start | None:
        """Continue an earlier run if its plan is the one that would be made now."""
        if journal is None or journal.head.fingerprint.get("digest") != job.fingerprint.digest:
            return None
        head = journal.head
        version = with_shards(self._folder, version, journal, head.adopted)
        kept, positions, todo = self._compare(finder, states, version, len(job.manifest))
        plan = make_plan(
            todo,
            states.fingerprints,
            job.key_hashes,
            head.fields,
            head.fingerprint,
            head.rows_per_shard,
            head.first_task,
        )
        if plan.digest != head.plan:
            return None
        self._say(f"continuing: {len(journal.receipts)} of {plan.num_tasks} shards are finished")
        return _Start(version, kept, positions, plan, head.fields, journal)

    def _start(
        self,
        engine: Engine,
        job: Job,
        finder: RowFinder,
        states: RowStates,
        version: Version | None,
        journal: Journal | None,
    ) -> _Start:
        """Plan anew. Shards that another plan finished count as being there already."""
        adopted: tuple[ShardMeta, ...] = ()
        if journal is not None and journal.head.fingerprint.get("digest") == job.fingerprint.digest:
            adopted = (*journal.head.adopted, *journal.shards())
            version = with_shards(self._folder, version, journal, adopted)
        kept, positions, todo = self._compare(finder, states, version, len(job.manifest))
        fields, bytes_per_row = self._settle_fields(engine, job, version, len(kept), todo)
        first_task = version.next_task if version is not None and len(kept) else 0
        per_shard = rows_per_shard(bytes_per_row, len(todo))
        fingerprint = job.fingerprint.to_json()
        plan = make_plan(todo, states.fingerprints, job.key_hashes, fields, fingerprint, per_shard, first_task)
        check_free_space(self._folder, bytes_per_row * len(todo))
        head = JournalHead(plan.digest, tuple(fields), fingerprint, first_task, per_shard, adopted)
        opened = journals.begin(self._folder, head, row_table(job.key_hashes, states))
        logger.info("plan: %d rows to make, %d samples kept, %d shards", len(todo), len(kept), plan.num_tasks)
        return _Start(version, kept, positions, plan, tuple(fields), opened)

    def _settle_fields(
        self, engine: Engine, job: Job, version: Version | None, num_kept: int, todo: Array
    ) -> tuple[Sequence[FieldSpec], float]:
        """Field specifications and mean bytes a row, from the version that is kept or the first rows."""
        if version is not None and (num_kept or not len(todo)):
            return _with_classes(version.fields, job), version.bytes_per_sample
        probed: list[Forms] = []
        failed: list[BadRow] = []
        for start in range(0, len(todo), NUM_PROBED):
            for found in engine.describe(job.maker, job.manifest.rows(todo[start : start + NUM_PROBED])):
                if isinstance(found, BadRow):
                    failed.append(found)
                else:
                    probed.append(found)
            if probed:
                break
            check_bad_fraction(self._folder, failed, len(todo), self._config.max_bad_fraction)
        if not probed:
            check_bad_fraction(self._folder, failed, max(len(todo), 1), 0.0)
            raise PrepareError("there are no rows to prepare")
        fields = specify(job.sections, job.kinds, probed)
        return fields, stored_bytes_per_row(fields, probed)

    def _make(self, engine: Engine, job: Job, start: _Start) -> list[Receipt]:
        """Make the shards that are missing; every finished one is noted before the next is counted."""
        plan, journal = start.plan, start.journal
        num_rows = len(plan.todo) + len(np.unique(start.positions))
        done = list(journal.receipts.values())
        retry = _positions_of(job, [row for receipt in done for row in receipt.bad])
        tasks = [row_task(job, n, plan.positions(n)) for n in plan.task_numbers() if n not in journal.receipts]
        if len(retry):
            # Rows that failed in the run before are tried again: it may have been the disk, not the file.
            tasks += [row_task(job, plan.first_task + plan.num_tasks + len(journal.receipts), retry)]
            done = [replace(receipt, bad=()) for receipt in done]
        self._progress.begin("prepare", len(plan.todo))
        self._progress.advance(len(plan.todo) - sum(task.num_rows for task in tasks))
        bad: list[BadRow] = []
        for receipt in engine.run(self._setup(job, start.fields), tasks, self._progress.advance):
            journal.append(receipt)
            done.append(receipt)
            bad += receipt.bad
            self._note(receipt)
            check_bad_fraction(self._folder, bad, num_rows, self._config.max_bad_fraction)
        return done

    def _setup(self, job: Job, fields: Sequence[FieldSpec]) -> TaskSetup:
        allowed = [name for name, section in job.sections.items() if section.allow_nonfinite]
        return TaskSetup(
            maker=job.maker,
            fields=tuple(fields),
            folder=str(self._folder / SHARD_FOLDER),
            allow_nonfinite=frozenset(allowed),
            safe=self._options.safe,
        )

    def _commit(
        self, job: Job, finder: RowFinder, states: RowStates, start: _Start, receipts: Sequence[Receipt]
    ) -> RunStats:
        """Put kept and new samples together and swap the root."""
        bad = [row for receipt in receipts for row in receipt.bad]
        fields = start.fields
        old_shards = start.version.shards if start.version is not None else ()
        new_shards = [shard for receipt in receipts for shard in receipt.shards]
        made = samples_of_shards(self._folder, new_shards, fields, first_shard=len(old_shards))
        made_at = finder.positions(row_hashes(made))
        self._distrust_moved(job, states, np.unique(made_at))
        samples = with_records(made, made_at, row_table(job.key_hashes, states))
        if start.version is not None and len(start.kept):
            lasting = row_table(job.key_hashes, states, lasting=True)
            bare = start.version.samples.take(pa.array(start.kept)).select(made.column_names)
            samples = pa.concat_tables([with_records(bare, start.positions, lasting), samples])
        positions = np.concatenate([start.positions, made_at])
        stats = RunStats.collect(
            receipts=receipts,
            num_samples=len(positions),
            unchanged=len(np.unique(start.positions)),
            removed=_num_removed(start.version, start.kept),
            failed=len(bad),
            bytes_in=int(states.sizes[np.unique(made_at)].clip(0).sum()),
            wall_s=time.perf_counter() - self._started,
            num_workers=count_workers(self._config),
        )
        nothing_new = not len(made_at) and not bad and stats.removed == 0
        meta = commit(
            self._folder, job, fields, (*old_shards, *new_shards), samples, positions, bad, stats.to_json()
        )
        logger.info("committed %d samples, content hash %s", meta.num_samples, meta.content_hash)
        if nothing_new:
            logger.info("nothing had changed")
        return replace(stats, content_hash=meta.content_hash, bad=tuple(bad))

    def _distrust_moved(self, job: Job, states: RowStates, positions: Array) -> None:
        """A file that changed while it was read must be read again next time."""
        moved = rows_that_moved(
            job.manifest, job.columns, positions, states, allow_outside=self._config.allow_outside_base
        )
        states.fingerprints[moved] = 0
        if len(moved):
            self._say(f"{len(moved)} files changed while they were read; run prepare again to read them anew")

    def _note(self, receipt: Receipt) -> None:
        self._progress.bad(len(receipt.bad))
        for shard in receipt.shards:
            logger.info("shard %s: %d samples, %d bytes", shard.file, shard.rows, shard.size)
        for row in receipt.bad:
            logger.warning("quarantined %s (%s) %s: %s", row.key, row.path, row.stage, row.error)

    def _say(self, text: str) -> None:
        logger.info("%s", text)
        self._progress.say(text)


@dataclass(frozen=True)
class _Start:
    """Where the making of shards begins."""

    version: Version | None
    kept: Array
    """Samples of the version that stay."""
    positions: Array
    """Their manifest positions."""
    plan: Plan
    fields: tuple[FieldSpec, ...]
    journal: Journal


def row_table(key_hashes: Array, states: RowStates, *, lasting: bool = False) -> Any:
    """What is recorded of each manifest row, as the plan file and the index keep it."""
    return pa.table(
        {
            "key_hash": key_hashes,
            "fingerprint": states.lasting if lasting else states.fingerprints,
            "by_content": states.lasting_by_content if lasting else states.by_content,
            "size": states.sizes,
            "mtime_ns": states.mtimes_ns,
            "path": pa.array(states.paths, pa.string()),
        }
    )


def _latest(samples: Any, kept: Array, positions: Array) -> tuple[Array, Array]:
    """One sample a (row, part): of two (an adopted shard repeats a committed row), the later shard's."""
    if not len(kept):
        return kept, positions
    parts = samples["part"].to_numpy()[kept]
    shards = samples["shard"].to_numpy()[kept]
    order = np.lexsort((-shards, parts, positions))
    same = (np.diff(positions[order]) == 0) & (np.diff(parts[order]) == 0)
    first = np.sort(order[np.concatenate([[True], ~same])])
    return kept[first], positions[first]


def _with_classes(fields: Sequence[FieldSpec], job: Job) -> list[FieldSpec]:
    """The specifications with class lists that may have grown."""
    found = {name: getattr(section, "classes", None) for name, section in job.sections.items()}
    return [replace(spec, classes=tuple(found.get(spec.name) or ()) or spec.classes) for spec in fields]


def _positions_of(job: Job, bad: Sequence[BadRow]) -> Array:
    finder = RowFinder(job.key_hashes, job.manifest.keys)
    found = finder.positions(np.array([hash_key(row.key) for row in bad], dtype=np.uint64))
    return np.sort(found[found >= 0])


def _num_removed(version: Version | None, kept: Array) -> int:
    """Samples of the committed version that are not part of the next one."""
    if version is None or version.meta is None:
        return 0
    return max(0, version.meta.num_samples - len(kept))


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """A full disk becomes an error that says where, and how much is left."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StoreError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StoreSpaceError(
            f"{folder}: {error.strerror} ({free_bytes(folder):,} bytes are free). Nothing is lost: make room "
            "and run the same command again, it continues where it stopped"
        ) from error
