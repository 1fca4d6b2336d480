"""Against the source: decode again and compare with the store; tell which rows have changed since."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flatout.config import Config
from flatout.source import key_hashes, scan_rows
from flatout.store.commit import read_quarantine
from flatout.store.engine import make_engine
from flatout.store.fingerprint import explain_difference
from flatout.store.job import Job, job_from_config, row_task
from flatout.store.measure import Measure
from flatout.store.mend import config_of_store
from flatout.store.plan import MIN_SHARDS
from flatout.store.progress import Progress, Silent
from flatout.store.receipt import BadRow, Receipt
from flatout.store.samples import RowFinder, row_hashes, up_to_date
from flatout.store.task import TaskSetup
from flatout.store.versions import Version, committed
from flatout.types import Array, FieldSpec

KILLED = "worker"
"""Stage of rows that killed or hung a worker: to try them again would take a minute each."""


@dataclass(frozen=True)
class SourceReport:
    """True if the store is what its sources would give now."""

    compared: int
    """Rows decoded again."""
    differing: tuple[str, ...]
    """Samples whose content differs although their source has not changed."""
    changed: tuple[str, ...]
    """Rows whose file or values changed since they were prepared."""
    new: tuple[str, ...]
    """Manifest rows that the store does not have; of those in quarantine the ones that can be decoded now."""
    gone: tuple[str, ...]
    """Samples whose row is no longer in the manifest."""
    failed: tuple[BadRow, ...]
    """Rows of the store that cannot be decoded now."""
    code_changes: tuple[str, ...] = ()
    """What changed in the code or settings that made the samples."""

    def __bool__(self) -> bool:
        return not (self.differing or self.changed or self.new or self.gone or self.failed or self.code_changes)

    def to_json(self) -> dict[str, Any]:
        return {"ok": bool(self), **asdict(self)}


def compare_with_source(
    folder: Path,
    num_rows: int | None = None,
    progress: Progress = Silent(),  # noqa: B008  stateless
    *,
    trusted: bool = False,
) -> SourceReport:
    """Decode every row, or `num_rows` spread evenly over the manifest, and compare the samples' digests.

    Where every row is decoded, those in quarantine are tried again, too, unless they killed or hung a worker.

    Args:
        trusted: code that the store names (a transform) may be imported and run.

    Raises:
        StoreError: the sources are not known here, or only code that nobody has vouched for can read them.
    """
    config = config_of_store(folder, trusted=trusted)
    version = committed(folder)
    if version is None:
        raise AssertionError("config_of_store has read the root")
    job = job_from_config(config, version.classes)
    finder = RowFinder(job.key_hashes, job.manifest.keys)
    positions = finder.positions(row_hashes(version.samples))
    is_known = positions >= 0
    is_current = up_to_date(version.samples, positions, _fingerprints(config, job, version, positions))
    chosen = _spread(np.unique(positions[is_current]), num_rows)
    quarantine = read_quarantine(folder)
    absent = set(_keys(job, np.setdiff1d(np.arange(len(job.manifest)), positions)))
    refused = frozenset(key for key in absent if num_rows is None and quarantine.get(key, KILLED) != KILLED)
    tried = np.union1d(chosen, _known(finder, refused))
    progress.begin("compare", len(tried))
    found = dry_run(config, job, version.fields, tried, progress)
    keys = version.samples["key"].to_pylist()
    good = np.setdiff1d(chosen, _known(finder, [row.key for row in found.bad]))
    recorded = _recorded(version, keys, np.isin(positions, good))
    mended = _rows_among(refused, found.digests.keys() - recorded.keys())
    return SourceReport(
        compared=len(chosen),
        differing=_differing(recorded, found.digests, mended),
        changed=tuple(_keys(job, np.unique(positions[is_known & ~is_current]))),
        new=tuple(sorted((absent - quarantine.keys()) | mended)),
        gone=tuple(sorted(key for key, known in zip(keys, is_known, strict=True) if not known)),
        failed=tuple(row for row in found.bad if row.key not in refused),
        code_changes=tuple(explain_difference(version.fingerprint, job.fingerprint)),
    )


def _known(finder: RowFinder, keys: Collection[str]) -> Array:
    """Manifest positions of the rows of these keys that are there."""
    positions = finder.positions(key_hashes(list(keys)))
    return positions[positions >= 0]


def _recorded(version: Version, keys: Sequence[str], are_wanted: Array) -> dict[str, int]:
    """Digest of each wanted sample, as the store has it."""
    digests = version.samples["digest"].to_pylist()
    return {keys[at]: digests[at] for at in np.flatnonzero(are_wanted).tolist()}


def _rows_among(rows: Collection[str], samples: Iterable[str]) -> set[str]:
    """Those of the rows that one of these samples, `ROW` or a piece `ROW#0003`, is of."""
    return {row for key in samples for row in (key, key.rpartition("#")[0]) if row in rows}


def _differing(recorded: Mapping[str, int], found: Mapping[str, int], mended: set[str]) -> tuple[str, ...]:
    """Samples that are other ones now, are no longer given, or that the store has not, of rows that it has."""
    differing = {key for key, digest in recorded.items() if found.get(key) != digest}
    others = found.keys() - recorded.keys()
    return tuple(sorted(differing | {key for key in others if not _rows_among(mended, [key])}))


@dataclass
class DryRun:
    """What rows would give, without a store."""

    digests: dict[str, int] = field(default_factory=dict)
    """Identity of each sample by key."""
    bad: list[BadRow] = field(default_factory=list)
    measures: dict[str, Measure] = field(default_factory=dict)
    """Values of each field, where they were to be measured."""

    def add(self, receipt: Receipt) -> None:
        self.digests.update(receipt.digests)
        self.bad += receipt.bad
        for name, measure in receipt.measures.items():
            self.measures.setdefault(name, Measure()).join(measure)


def dry_run(
    config: Config,
    job: Job,
    fields: Sequence[FieldSpec],
    positions: Array,
    progress: Progress,
    *,
    is_measuring: bool = False,
) -> DryRun:
    """Make these rows' samples and write nothing."""
    allowed = frozenset(name for name, section in job.sections.items() if section.allow_nonfinite)
    setup = TaskSetup(
        job.maker,
        tuple(fields),
        "",
        allowed,
        is_dry=True,
        is_measuring=is_measuring,
        max_sample_bytes=config.max_sample_bytes,
    )
    parts = np.array_split(positions, max(1, min(len(positions), MIN_SHARDS)))
    tasks = [row_task(job, number, part) for number, part in enumerate(parts) if len(part)]
    found = DryRun()
    # On this machine, whatever made the store.
    with make_engine(config.model_copy(update={"engine": "local"}), job.sys_path) as engine:
        for receipt in engine.run(setup, tasks, progress.advance):
            found.add(receipt)
            progress.bad(len(receipt.bad))
    return found


def _fingerprints(config: Config, job: Job, version: Version, positions: Array) -> Array:
    """The rows' fingerprints now; those recorded by content, by content."""
    content = np.zeros(len(job.manifest), bool)
    content[positions[(positions >= 0) & version.samples["by_content"].to_numpy()]] = True
    states = scan_rows(
        job.manifest,
        job.columns,
        allow_outside=config.allow_outside_base,
        checksum=config.checksum,
        content_rows=content,
    )
    return states.fingerprints


def _keys(job: Job, positions: Array) -> list[str]:
    return sorted(job.manifest.keys.take(pa.array(positions)).to_pylist())


def _spread(positions: Array, count: int | None) -> Array:
    if count is None or count >= len(positions):
        return positions
    return positions[np.linspace(0, len(positions) - 1, count).astype(np.int64)]
