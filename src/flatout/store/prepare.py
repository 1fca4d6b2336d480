"""Prepare: raw files in, a verified store out. Stop it anywhere; the same call continues.

scan what is known -> compare with it -> plan -> make shards, look at their rows (journal) -> commit
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flatout.config import Config
from flatout.errors import ConfigError, StoreError, StoreLockedError
from flatout.source import RowStates, hash_key, make_sighter, scan_rows
from flatout.store import journal as journals
from flatout.store.commit import commit
from flatout.store.engine import Engine, count_workers, make_engine
from flatout.store.files import remove_leftovers
from flatout.store.fingerprint import explain_difference
from flatout.store.job import Job, row_digests, row_task
from flatout.store.journal import Journal, MadeRows
from flatout.store.limits import check_bad_fraction, disk_errors, refuse_all_bad
from flatout.store.lock import locked
from flatout.store.log import log_to
from flatout.store.lost_fields import refuse_lost_fields
from flatout.store.metadata import SHARD_FOLDER
from flatout.store.moved import told_moved
from flatout.store.place import refuse_source_folder
from flatout.store.progress import Progress, Silent
from flatout.store.receipt import BadRow, Receipt
from flatout.store.samples import RowFinder, distinct, row_hashes, samples_of_shards, up_to_date
from flatout.store.specify import NUM_PROBED
from flatout.store.start import Planner, Start, extends, row_table
from flatout.store.statistics import RunStats
from flatout.store.task import TaskSetup
from flatout.store.traces import Traces
from flatout.store.uncollected import uncollected
from flatout.store.versions import (
    Version,
    broken_shards,
    classes_of_root,
    committed,
    known_classes,
    with_old_records,
    with_records,
)
from flatout.types import Array

logger = logging.getLogger("flatout.prepare")

SPREAD_ROWS = 20_000
"""From here on workers look at the files: alone this process takes 10 us a row, where 20 workers decode one."""


@dataclass(frozen=True)
class PrepareOptions:
    """How one prepare runs; nothing here changes a sample."""

    force: bool = False
    """Make every sample again."""
    accept_fingerprint: bool = False
    """Keep samples although the code or settings that made them changed."""
    distrusted: frozenset[str] = frozenset()
    """Shard files whose samples are made again (repair)."""
    only_rows: frozenset[int] | None = None
    """Hashes of the keys of the rows that may be made; others wait for the next prepare (repair)."""
    pins: bool = False
    """Samples of whole shards stay as they are, whatever has become of their sources (repair)."""
    rewrite: bool = False
    """Write index, view, quarantine and stats even if nothing changed (repair)."""
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
    refuse_source_folder(config.manifest, folder)
    traces = Traces(folder)
    try:
        with disk_errors(folder), locked(folder), log_to(folder):
            (folder / SHARD_FOLDER).mkdir(exist_ok=True)
            _clean(folder)
            try:
                return _Prepare(config, folder, options, progress).run(make_job)
            finally:
                _clean(folder)  # of shards that workers were at when they were stopped, or died
    except StoreLockedError:
        raise  # what is there is another's
    except BaseException:
        traces.remove()
        raise


def _clean(folder: Path) -> None:
    for place in (folder, folder / SHARD_FOLDER):
        remove_leftovers(place)


class _Prepare:
    """One prepare under way; its steps in order."""

    def __init__(self, config: Config, folder: Path, options: PrepareOptions, progress: Progress) -> None:
        self._config = config
        self._folder = folder
        self._options = options
        self._progress = progress
        self._started = time.perf_counter()
        self._num_continued = 0

    def run(self, make_job: Callable[[Mapping[str, Sequence[str]]], Job]) -> RunStats:
        with make_engine(self._config) as engine:  # first of all: workers take a while to start
            # Without workers the first rows are made here: what a user's code leaves behind is collected.
            with uncollected() if count_workers(self._config) else nullcontext():
                job, finder, states, start = self._plan(engine, make_job)
            receipts = self._make(engine, job, finder, states, start)
            with uncollected():
                made = self._samples(start, receipts)
                bad = [row for receipt in receipts for row in receipt.bad]
                if bad and not len(made) and not len(start.kept):
                    refuse_all_bad(self._folder, bad)
        with uncollected():
            return self._commit(job, finder, states, start, receipts, made, bad)

    def _plan(
        self, engine: Engine, make_job: Callable[[Mapping[str, Sequence[str]]], Job]
    ) -> tuple[Job, RowFinder, RowStates, Start]:
        """What is there, what is wanted, and so what is to be made."""
        version = None if self._options.force else self._committed()
        journal = journals.find(self._folder)
        journal = None if journal is None else journals.without_damaged(journal, self._options.distrusted)
        job = self._settle_job(make_job, version, journal)
        engine.import_from(job.sys_path)
        finder = RowFinder(job.key_hashes, job.manifest.keys)
        if (told := told_moved(version or self._replaced(), job, finder)) is not None:
            self._say(told)
        version = self._usable(version, job)
        states = self._scan(engine, job, finder, version, journal)
        self._tell_unhashed(version, finder, states)
        planner = Planner(
            self._config,
            self._folder,
            job,
            finder,
            states,
            is_forced=self._options.force,
            only_rows=self._options.only_rows,
            num_pinned=len(version.shards) if self._options.pins and version is not None else 0,
            progress=self._progress,
        )
        start = planner.resume(version, journal)
        if start is None:
            return job, finder, states, planner.start(engine, version, journal)
        done = len(start.journal.receipts)
        self._say(f"continuing: {done} of {start.plan.num_tasks} shards are finished")
        return job, finder, states, start

    def _committed(self) -> Version | None:
        """The version that the root names; samples of shards that are gone or cut short do not count."""
        broken = broken_shards(self._folder)
        if fresh := sorted(broken - self._options.distrusted):
            self._say(f"{len(fresh)} shards are missing or cut short ({fresh[0]}); making their samples again")
        return committed(self._folder, self._options.distrusted | broken)

    def _replaced(self) -> Version | None:
        """What a forced prepare makes anew, if that can be read."""
        try:
            return committed(self._folder)
        except (StoreError, OSError):
            return None

    def _settle_job(
        self,
        make_job: Callable[[Mapping[str, Sequence[str]]], Job],
        version: Version | None,
        journal: Journal | None,
    ) -> Job:
        """The job, with classes numbered as the samples that exist have them, or had before a --force."""
        job = make_job(version.classes if version is not None else classes_of_root(self._folder))
        if journal is not None and journal.head.fingerprint.get("digest") == job.fingerprint.digest:
            classes = known_classes(version, journal)
            job = job if extends(job, classes) else make_job(classes)
        for note in job.notes:
            self._say(note)
        return job

    def _scan(
        self, engine: Engine, job: Job, finder: RowFinder, version: Version | None, journal: Journal | None
    ) -> RowStates:
        """Look at the files of rows that there are samples of, and of the first others: the plan follows these.

        What is recorded by content is compared by content. The other rows are looked at when they are made.
        """
        is_known, content = np.zeros((2, len(job.manifest)), bool)
        recorded = [] if version is None else [(row_hashes(version.samples), version.samples)]
        noted = None if journal is None else journals.recorded_rows(journal)
        if noted is not None:
            recorded.append((noted["key_hash"].to_numpy(), noted))
        for hashes, table in recorded:
            positions = finder.positions(hashes)
            is_known[positions[positions >= 0]] = True
            content[positions[(positions >= 0) & table["by_content"].to_numpy()]] = True
        others = np.flatnonzero(~is_known)
        if self._options.only_rows is not None:
            allowed = np.fromiter(self._options.only_rows, np.uint64, len(self._options.only_rows))
            others = others[np.isin(job.key_hashes[others], allowed)]
        is_known[others[:NUM_PROBED]] = True
        rows = np.flatnonzero(is_known)
        return scan_rows(
            job.manifest,
            job.columns,
            allow_outside=self._config.allow_outside_base,
            checksum=self._config.checksum,
            content_rows=content,
            rows=rows,
            spread=engine.spread if len(rows) >= SPREAD_ROWS else map,
        )

    def _usable(self, version: Version | None, job: Job) -> Version | None:
        """The committed version, unless what made it has changed since."""
        if version is None or version.fingerprint.digest == job.fingerprint.digest:
            return version
        if version.meta is not None:
            settings = version.meta.settings
            refuse_lost_fields(self._folder, version.fingerprint, settings, self._config, job)
        changes = explain_difference(version.fingerprint, job.fingerprint)
        if self._options.accept_fingerprint:
            self._say(f"kept all samples although {'; '.join(changes)} (--accept-fingerprint)")
            return version
        self._say(f"making every sample again: {'; '.join(changes)} (--accept-fingerprint would keep them)")
        return None

    def _tell_unhashed(self, version: Version | None, finder: RowFinder, states: RowStates) -> None:
        """Say why the first run with `checksum` makes rows again that have not changed."""
        if version is None or not self._config.checksum:
            return
        positions = finder.positions(row_hashes(version.samples))
        is_current = up_to_date(version.samples, positions, states.fingerprints)  # of no file: nothing to hash
        unhashed = (positions >= 0) & ~version.samples["by_content"].to_numpy() & ~is_current
        if num_rows := len(np.unique(positions[unhashed])):
            self._say(
                f"making {num_rows:,} rows again: the store knows their files by size and time, not by the "
                "content that checksum compares; from now on it knows that, too"
            )

    def _make(
        self, engine: Engine, job: Job, finder: RowFinder, states: RowStates, start: Start
    ) -> list[Receipt]:
        """Make the shards that are missing; every finished one is noted before the next is counted."""
        plan, journal = start.plan, start.journal
        num_rows = len(plan.todo) + len(np.unique(start.positions))
        # Rows that failed in the run before are tried again: it may have been the disk, not the file.
        retry = self._failed_before(finder, start)
        done = [self._counted(journal, replace(r, bad=())) for r in journal.receipts.values()]
        # A task whose shard was lost is done again; what a later try has of its rows may not stand there twice.
        made_later = finder.positions(journal.made_later())
        todo = {n: plan.positions(n) for n in plan.task_numbers() if n not in journal.receipts}
        if len(made_later):
            left = {number: positions[~np.isin(positions, made_later)] for number, positions in todo.items()}
            todo = {number: positions for number, positions in left.items() if len(positions)}
        if len(retry):
            first = 1 + max(plan.task_numbers()[-1], *journal.receipts)
            later = replace(plan, todo=retry, first_task=first)  # as large: a worker holds a whole task
            todo |= {n: later.positions(n) for n in later.task_numbers()}
        digests = row_digests(job)
        tasks = [row_task(job, number, positions, digests) for number, positions in todo.items()]
        self._num_continued = sum(receipt.num_rows for receipt in done)
        self._progress.begin("prepare", sum(task.num_rows for task in tasks))
        bad: list[BadRow] = []
        num_moved = 0
        for receipt in engine.run(self._setup(job, start), tasks, self._progress.advance):
            positions = todo[receipt.task]
            journal.append(receipt, MadeRows.of(job.key_hashes[positions], receipt.sights))
            if receipt.sights is not None:
                states.record(positions, receipt.sights)
                num_moved += receipt.sights.num_moved
            done.append(self._counted(journal, replace(receipt, sights=None)))
            bad += receipt.bad
            self._note(receipt)
            check_bad_fraction(self._folder, bad, num_rows, self._config.max_bad_fraction)
        if num_moved:
            self._say(f"{num_moved} files changed while they were read; run prepare again to read them anew")
        return sorted(done, key=lambda receipt: receipt.task)  # which worker was first must not show

    @staticmethod
    def _counted(journal: Journal, receipt: Receipt) -> Receipt:
        """Rows of a later try have been counted where they failed."""
        return replace(receipt, num_rows=0) if journal.is_later_try(receipt.task) else receipt

    def _failed_before(self, finder: RowFinder, start: Start) -> Array:
        """Rows that failed in the run that is continued, and that no later try has made since."""
        receipts = start.journal.receipts.values()
        keys = {row.key for receipt in receipts for row in receipt.bad}
        failed = finder.positions(np.array([hash_key(key) for key in keys], dtype=np.uint64))
        later = [receipt for receipt in receipts if start.journal.is_later_try(receipt.task)]
        shards = [shard for receipt in later for shard in receipt.shards]
        made = samples_of_shards(self._folder, shards, start.fields)
        return np.setdiff1d(failed[failed >= 0], finder.positions(row_hashes(made)))

    def _setup(self, job: Job, start: Start) -> TaskSetup:
        allowed = [name for name, section in job.sections.items() if section.allow_nonfinite]
        return TaskSetup(
            maker=job.maker,
            fields=tuple(start.fields),
            folder=str(self._folder / SHARD_FOLDER),
            allow_nonfinite=frozenset(allowed),
            safe=self._options.safe,
            max_sample_bytes=self._config.max_sample_bytes,
            planned_bytes=start.journal.head.planned_bytes,
            sighter=make_sighter(
                job.manifest,
                job.columns,
                allow_outside=self._config.allow_outside_base,
                checksum=self._config.checksum,
                is_early=job.reads_any,
            ),
        )

    def _samples(self, start: Start, receipts: Sequence[Receipt]) -> Any:
        """The samples of the shards that were made, numbered after those that were there."""
        num_old = len(start.version.shards) if start.version is not None else 0
        shards = [shard for receipt in receipts for shard in receipt.shards]
        return samples_of_shards(self._folder, shards, start.fields, first_shard=num_old)

    def _commit(
        self,
        job: Job,
        finder: RowFinder,
        states: RowStates,
        start: Start,
        receipts: Sequence[Receipt],
        made: Any,
        bad: Sequence[BadRow],
    ) -> RunStats:
        """Put kept and new samples together and swap the root."""
        fields = start.fields
        old_shards = start.version.shards if start.version is not None else ()
        new_shards = [shard for receipt in receipts for shard in receipt.shards]
        planned = [start.plan.positions(r.task) for r in receipts if r.task in start.plan.task_numbers()]
        made_at = finder.positions(row_hashes(made), np.concatenate([np.empty(0, np.int64), *planned]))
        samples = with_records(made, made_at, row_table(job.key_hashes, states))
        if start.version is not None and len(start.kept):
            lasting = row_table(job.key_hashes, states, lasting=True)
            before = start.version.samples.take(pa.array(start.kept))
            kept = with_records(before.select(made.column_names), start.positions, lasting)
            samples = pa.concat_tables([with_old_records(kept, before, start.pinned), samples])
        positions = np.concatenate([start.positions, made_at])
        stats = RunStats.collect(
            receipts=receipts,
            num_samples=len(positions),
            unchanged=len(np.unique(start.positions)),
            continued=self._num_continued,
            removed=_num_removed(start.version, start.kept),
            failed=len(bad),
            bytes_in=int(states.sizes[distinct(made_at, len(job.manifest))].clip(0).sum()),
            wall_s=time.perf_counter() - self._started,
            num_workers=count_workers(self._config),
        )
        num_left_out = len(job.manifest) - len(distinct(positions, len(job.manifest))) - len(bad)
        if self._config.limit is not None and num_left_out:
            self._say(f"{num_left_out:,} rows are left out until a run without --limit")
        shards, facts = (*old_shards, *new_shards), stats.to_json()
        before = None if self._options.rewrite else start.version
        meta = commit(self._folder, job, fields, shards, samples, positions, bad, facts, before=before)
        logger.info("committed %d samples, content hash %s", meta.num_samples, meta.content_hash)
        return replace(stats, content_hash=meta.content_hash, bad=tuple(bad))

    def _note(self, receipt: Receipt) -> None:
        self._progress.bad(len(receipt.bad))
        for shard in receipt.shards:
            logger.info("shard %s: %d samples, %d bytes", shard.file, shard.rows, shard.size)
        for row in receipt.bad:
            logger.warning("quarantined %s (%s) %s: %s", row.key, row.path, row.stage, row.error)

    def _say(self, text: str) -> None:
        logger.info("%s", text)
        self._progress.say(text)


def _num_removed(version: Version | None, kept: Array) -> int:
    """Samples of the committed version that are not part of the next one."""
    if version is None or version.meta is None:
        return 0
    return max(0, version.meta.num_samples - len(kept))
