"""Where a prepare begins: what can be kept, what must be made, in which shards; or where one was cut off."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flatout.config import Config
from flatout.errors import PrepareError
from flatout.source import RowStates
from flatout.store import journal as journals
from flatout.store.engine import Engine
from flatout.store.job import Job
from flatout.store.journal import Journal, JournalHead
from flatout.store.limits import check_bad_fraction, check_free_space, doubt_space, refuse_all_bad
from flatout.store.metadata import ShardMeta
from flatout.store.plan import Plan, make_plan, rows_per_shard, stored_bytes_per_row
from flatout.store.progress import Progress, Silent
from flatout.store.receipt import BadRow
from flatout.store.samples import RowFinder, row_hashes, up_to_date
from flatout.store.specify import NUM_PROBED, Forms, specify
from flatout.store.versions import Version, with_shards
from flatout.types import Array, FieldSpec

logger = logging.getLogger("flatout.prepare")

MOST_BEYOND = 64
"""Rows beyond a limit that are looked at, at the most, for eight good ones: the files may not be there yet."""


@dataclass(frozen=True)
class Start:
    """Where the making of shards begins."""

    version: Version | None
    kept: Array
    """Samples of the version that stay."""
    positions: Array
    """Their manifest positions."""
    pinned: Array
    """Which of them stay with what is recorded of them, whatever their sources are now."""
    plan: Plan
    fields: tuple[FieldSpec, ...]
    journal: Journal


class Planner:
    """Compares a job with what the store has, and plans the rest."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        job: Job,
        finder: RowFinder,
        states: RowStates,
        *,
        is_forced: bool = False,
        only_rows: Collection[int] | None = None,
        num_pinned: int = 0,
        progress: Progress = Silent(),  # noqa: B008  stateless
    ) -> None:
        """`num_pinned`: samples of so many first shards of the version stay, whatever their sources are now."""
        self._config = config
        self._folder = folder
        self._job = job
        self._finder = finder
        self._states = states
        self._is_forced = is_forced
        self._only_rows = None if only_rows is None else np.fromiter(only_rows, np.uint64, len(only_rows))
        self._num_pinned = num_pinned
        self._progress = progress

    def resume(self, version: Version | None, journal: Journal | None) -> Start | None:
        """Continue an earlier run if its plan is what would be planned now, and what it made is current."""
        if journal is None or not self._can_use(journal, version):
            return None
        head, finished = journal.head, (*journal.head.adopted, *journal.shards())
        if self._current(None, journal, finished) != finished:  # by itself: the version may have another form
            return None
        version = with_shards(self._folder, version, journal, head.adopted)
        kept, positions, missing = self._compare(version)
        plan = self._plan(missing, head.fields, head.rows_per_shard, head.first_task)
        if plan.digest != head.plan:
            return None
        check_free_space(self._folder, _rest_bytes(plan, journal))
        fields, pinned = _with_classes(head.fields, self._job), self._are_pinned(version, kept)
        return Start(version, kept, positions, pinned, plan, fields, journal)

    def start(self, engine: Engine, version: Version | None, journal: Journal | None) -> Start:
        """Plan anew. Shards that another plan finished count as being there already."""
        adopted: tuple[ShardMeta, ...] = ()
        base = "" if version is None else version.fingerprint.digest
        if journal is not None and self._can_use(journal, version):
            adopted = self._adopted(version, journal)
            version = with_shards(self._folder, version, journal, adopted)
        kept, positions, missing = self._compare(version)
        todo = self._within_limit(missing)
        fields, bytes_per_row, least_per_row = self._settle_fields(engine, version, positions, missing)
        first_task = version.next_task if version is not None and len(kept) else 0
        plan = self._plan(missing, fields, rows_per_shard(bytes_per_row, len(todo)), first_task)
        self._check_space(bytes_per_row * len(todo), least_per_row * len(todo))
        fingerprint = self._job.fingerprint.to_json()
        head = JournalHead(
            plan=plan.digest,
            fields=fields,
            fingerprint=fingerprint,
            first_task=first_task,
            num_tasks=plan.num_tasks,
            rows_per_shard=plan.rows_per_shard,
            adopted=adopted,
            is_forced=self._is_forced,
            bytes_per_row=least_per_row,
            planned_bytes=bytes_per_row * len(todo),
            base=base if len(kept) else "",
        )
        looked_at = np.flatnonzero(self._states.fingerprints)
        rows = row_table(self._job.key_hashes, self._states).take(pa.array(looked_at))
        opened = journals.begin(self._folder, head, rows)
        logger.info("plan: %d rows to make, %d samples kept, %d shards", len(todo), len(kept), plan.num_tasks)
        return Start(version, kept, positions, self._are_pinned(version, kept), plan, fields, opened)

    def _adopted(self, version: Version | None, journal: Journal) -> tuple[ShardMeta, ...]:
        """The finished shards of another plan that are up to date as a whole.

        The new plan's record of the rows will speak for them: a sample whose source has changed since must
        not be among them, or the next run would take it for current.
        """
        named = {shard.file for shard in version.shards} if version is not None else set()
        shards = [s for s in (*journal.head.adopted, *journal.shards()) if s.file not in named]
        return self._current(version, journal, shards)

    def _current(
        self, version: Version | None, journal: Journal, shards: Sequence[ShardMeta]
    ) -> tuple[ShardMeta, ...]:
        """Those of a journal's shards that are up to date as a whole, beside a version of the same form."""
        grown = with_shards(self._folder, version, journal, shards)
        if grown is None or grown is version:
            return ()
        kept, _, _ = self._compare(grown)
        counts = np.bincount(grown.samples["shard"].to_numpy()[kept], minlength=len(grown.shards))
        live = counts[len(grown.shards) - len(shards) :].tolist()
        return tuple(shard for shard, count in zip(shards, live, strict=True) if count == shard.rows)

    def _can_use(self, journal: Journal, version: Version | None) -> bool:
        """Whether the journal's shards were made as this job would make them, beside the same version."""
        head = journal.head
        if head.fingerprint.get("digest") != self._job.fingerprint.digest:
            return False
        # Kept by --accept-fingerprint, a version of other settings gives its form to what is made beside it.
        if head.base not in ("", "" if version is None else version.fingerprint.digest):
            return False
        if self._is_forced and not head.is_forced:
            return False
        return extends(self._job, {spec.name: spec.classes for spec in head.fields if spec.classes})

    def _plan(self, missing: Array, fields: Sequence[FieldSpec], per_shard: int, first_task: int) -> Plan:
        # By their times: whether contents count, too, changes with the time since they were written.
        probed, fingerprint = self._states.stamps[missing[:NUM_PROBED]], self._job.fingerprint.digest
        todo, hashes = self._within_limit(missing), self._job.key_hashes
        return make_plan(todo, probed, hashes, fields, fingerprint, per_shard, first_task)

    def _within_limit(self, missing: Array) -> Array:
        """Rows to make now, of those that have no sample."""
        limit = self._config.limit
        return missing if limit is None else missing[missing < limit]

    def _compare(self, version: Version | None) -> tuple[Array, Array, Array]:
        """(samples to keep, their manifest positions, rows without a sample)."""
        if version is None:
            kept, positions = np.empty(0, np.int64), np.empty(0, np.int64)
        else:
            found = self._finder.positions(row_hashes(version.samples))
            is_current = up_to_date(version.samples, found, self._states.fingerprints)
            is_current |= self._are_as_timed(version.samples, found)
            kept = np.flatnonzero(self._with_pinned(version, found, is_current))
            kept, positions = _latest(version.samples, kept, found[kept])
        is_kept = np.zeros(len(self._job.manifest), bool)
        is_kept[positions] = True
        missing = np.flatnonzero(~is_kept)
        if self._only_rows is not None:
            missing = missing[np.isin(self._job.key_hashes[missing], self._only_rows)]
        return kept, positions, missing

    def _with_pinned(self, version: Version, found: Array, is_current: Array) -> Array:
        """Which samples stay: pinned and current ones; beside pinned ones only those of wanted rows."""
        pinned = self._are_pinned(version, np.arange(len(found))) & (found >= 0)
        if self._num_pinned and self._only_rows is not None:
            hashes = self._job.key_hashes[np.maximum(found, 0)]
            is_current = is_current & np.isin(hashes, self._only_rows)
        stay: Array = pinned | is_current
        return stay

    def _are_pinned(self, version: Version | None, samples: Array) -> Array:
        if version is None:
            return np.zeros(len(samples), bool)
        pinned: Array = version.samples["shard"].to_numpy()[samples] < self._num_pinned
        return pinned

    def _are_as_timed(self, samples: Any, positions: Array) -> Array:
        """Which samples were recorded by time and have the same times now, though their content was looked at.

        So it is where the plan of a run that was cut off has their content, and the root that it just swapped
        in has their times.
        """
        by_time = ~samples["by_content"].to_numpy() & ~self._states.lasting_by_content[np.maximum(positions, 0)]
        found: Array = by_time & up_to_date(samples, positions, self._states.stamps)
        return found

    def _settle_fields(
        self, engine: Engine, version: Version | None, kept_rows: Array, missing: Array
    ) -> tuple[tuple[FieldSpec, ...], float, float]:
        """Field specifications and bytes a row, from the version that is kept or the first good rows.

        They may lie beyond the limit: a run with less than eight rows must settle what the whole one would.
        Mean bytes before compression, and those that take space however well the rest is compressed.
        """
        num_todo = len(self._within_limit(missing))
        if version is not None and (len(kept_rows) or not num_todo):
            samples_per_row = len(kept_rows) / max(len(np.unique(kept_rows)), 1)
            num_bytes = version.bytes_per_sample * samples_per_row
            return _with_classes(version.fields, self._job), num_bytes, num_bytes
        probed: list[Forms] = []
        failed: list[BadRow] = []
        if not num_todo:
            raise PrepareError("there are no rows to prepare")
        candidates = missing[: num_todo + MOST_BEYOND]
        self._progress.begin("first look", min(NUM_PROBED, len(candidates)))
        for first in range(0, len(candidates), NUM_PROBED):
            rows = self._job.manifest.rows(candidates[first : first + NUM_PROBED])
            for at, found in enumerate(engine.describe(self._job.maker, rows), first):
                if not isinstance(found, BadRow):
                    probed.append(found)
                elif at < num_todo:
                    failed.append(found)
            check_bad_fraction(self._folder, failed, num_todo, self._config.max_bad_fraction)
            if len(probed) >= NUM_PROBED:
                break
        if len(failed) == num_todo:
            refuse_all_bad(self._folder, failed)
        probed = probed[:NUM_PROBED]  # the same as if the bad rows had never been there
        fields = specify(self._job.sections, self._job.kinds, probed)
        raw = [spec for spec in fields if spec.compression == "none"]
        return fields, stored_bytes_per_row(fields, probed), stored_bytes_per_row(raw, probed)

    def _check_space(self, num_bytes: float, least_bytes: float) -> None:
        """Refuse what cannot fit; say so of what fits only if it can be compressed."""
        check_free_space(self._folder, least_bytes)
        if note := doubt_space(self._folder, num_bytes):
            logger.info("%s", note)
            self._progress.say(note)


def _rest_bytes(plan: Plan, journal: Journal) -> float:
    """What the unfinished tasks of a plan will take: by what the finished ones took, else as was expected."""
    rest = sum(len(plan.positions(n)) for n in plan.task_numbers() if n not in journal.receipts)
    num_made = sum(receipt.num_rows for receipt in journal.receipts.values())
    made_bytes = sum(shard.size for shard in journal.shards())
    return rest * (made_bytes / num_made if num_made else journal.head.bytes_per_row)


def extends(job: Job, classes: Mapping[str, Sequence[str]]) -> bool:
    """Whether the job numbers these classes as samples that exist have them numbered."""
    lists = {name: getattr(job.sections.get(name), "classes", None) or () for name in classes}
    return all(list(lists[name])[: len(names)] == list(names) for name, names in classes.items())


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


def _with_classes(fields: Sequence[FieldSpec], job: Job) -> tuple[FieldSpec, ...]:
    """The specifications with class lists that may have grown."""
    found = {name: getattr(section, "classes", None) for name, section in job.sections.items()}
    return tuple(replace(spec, classes=tuple(found.get(spec.name) or ()) or spec.classes) for spec in fields)
