"""What a manifest or a folder would give: a few rows decoded, or every one, and nothing written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from flatout.config import Config
from flatout.config.fields import LabelField
from flatout.errors import SampleError
from flatout.source import Manifest, SourceFile, find_path, scan_rows
from flatout.store.against import DryRun, dry_run
from flatout.store.counts import Counts, classes_of, counted, expected
from flatout.store.engine import make_engine
from flatout.store.extent import spread
from flatout.store.job import Job, job_from_config
from flatout.store.measure import Measure
from flatout.store.plan import stored_bytes_per_row
from flatout.store.progress import Progress, Silent
from flatout.store.receipt import BadRow
from flatout.store.specify import Forms, specify
from flatout.store.summary import FieldSummary, Summary, head_of
from flatout.types import Array, FieldSpec, Row

NUM_LOOKED_AT = 32
"""Rows of a manifest that are decoded to see what the samples would be."""


def summarise_source(
    config: Config,
    *,
    validate: bool = False,
    progress: Progress = Silent(),  # noqa: B008  stateless
) -> Summary:
    """What a prepare of this config would find: a few rows decoded, or with `validate` every row.

    Rows that are known to be bad count nowhere but as bad: a prepare would leave them out.

    Raises:
        ConfigError, ManifestError: the settings or the manifest cannot be used.
    """
    job = job_from_config(config)
    states = scan_rows(
        job.manifest, job.columns, allow_outside=config.allow_outside_base, checksum=False, content_rows=None
    )
    looked = _look(config, job, progress, until_one=validate)
    fields = specify(job.sections, job.kinds, looked.forms) if looked.forms else ()
    found = DryRun(bad=list(looked.bad))
    if validate and fields:
        positions = np.arange(len(job.manifest))
        progress.begin("validate", len(positions))
        found = dry_run(config, job, fields, positions, progress, is_measuring=True)
    elif not validate:
        known = {row.key for row in looked.bad}
        found.bad += _missing(job, states.sizes, config.allow_outside_base, known)
    counts = counted(job, found) if validate else expected(job, found.bad, looked.samples_per_row)
    per_sample = stored_bytes_per_row([_plain(spec) for spec in fields], looked.forms) / looked.samples_per_row
    return Summary(
        place=str(config.manifest),
        num_rows=len(job.manifest),
        num_decoded=len(job.manifest) if validate else looked.num_rows,
        num_samples=counts.num_samples if fields else None,
        splits=counts.by_split() if fields else {},
        fields=[
            _field(spec, looked.forms, job, counts, found.measures.get(spec.name, Measure())) for spec in fields
        ],
        disk_bytes=_disk_bytes(job.manifest, states.sizes),
        memory_bytes=int(per_sample * counts.num_samples),
        num_groups=len(np.unique(job.groups[counts.per_row > 0])),
        num_bad=len(found.bad),
        bad=found.bad,
        refusal=_refusal(config, len(found.bad), len(job.manifest), looked),
        notes=[*job.notes, *([] if validate or not fields else [looked.told(len(job.manifest))])],
    )


@dataclass(frozen=True)
class _Looked:
    """What the rows that were decoded first gave."""

    forms: list[Forms]
    """Of those that could be decoded."""
    bad: list[BadRow]

    @property
    def num_rows(self) -> int:
        return len(self.forms) + len(self.bad)

    @property
    def samples_per_row(self) -> float:
        return float(np.mean([len(row) for row in self.forms])) if self.forms else 1.0

    def told(self, num_all: int) -> str:
        num_rows = len(self.forms)
        which = f"all {num_all:,}" if num_rows == num_all else f"{num_rows:,} of {num_all:,}"
        how = "" if num_rows == num_all else ", spread evenly"
        return f"shapes and sizes from {which} rows{how}; --validate-only decodes and checks every row"


def _look(config: Config, job: Job, progress: Progress, *, until_one: bool) -> _Looked:
    """Decode rows spread evenly, in safety: a manifest is often sorted, so its first rows are alike.

    Args:
        until_one: if none of them can be decoded, go on with the others until one can.
    """
    last = len(job.manifest) - 1
    first = np.unique(np.linspace(0, last, min(NUM_LOOKED_AT, last + 1)).round().astype(np.int64))
    others = np.setdiff1d(np.arange(last + 1), first) if until_one else first[:0]
    further = (others[at : at + NUM_LOOKED_AT] for at in range(0, len(others), NUM_LOOKED_AT))
    looked = _Looked([], [])
    progress.begin("first look", len(first))
    with make_engine(config.model_copy(update={"engine": "local", "num_workers": 1}), job.sys_path) as engine:
        for number, block in enumerate(chain([first], further)):
            if number == 1:
                progress.begin("further look", len(others))
            num_bad = len(looked.bad)
            for found in engine.describe(job.maker, job.manifest.rows(block)):
                looked.bad.append(found) if isinstance(found, BadRow) else looked.forms.append(found)
            progress.bad(len(looked.bad) - num_bad)
            progress.advance(len(block))
            if looked.forms:
                break
    return looked


def _missing(job: Job, sizes: Array, allow_outside: bool, known: set[str]) -> list[BadRow]:
    """Rows with a file that is not there, other than the known ones."""
    rows = job.manifest.rows(np.flatnonzero(sizes < 0))
    return [
        BadRow.of(job.maker, row, "find", _why_missing(job, row, allow_outside))
        for row in rows
        if row.key not in known
    ]


def _why_missing(job: Job, row: Row, allow_outside: bool) -> str:
    """Which file it is, and what is wrong with it."""
    for column in job.manifest.path_columns:
        cell = row.values.get(column)
        if column not in job.columns or not job.manifest.names_file(column, cell):
            continue
        try:
            if isinstance(cell, SourceFile):
                cell.stat()
            else:
                find_path(str(cell), str(job.manifest.base_path), allow_outside)
        except SampleError as error:
            return error.reason
        except OSError as error:
            return f"'{getattr(cell, 'path', cell)}': {error.strerror or error}"
    return "a file that it names cannot be read"


def _field(spec: FieldSpec, forms: Sequence[Forms], job: Job, counts: Counts, measure: Measure) -> FieldSummary:
    seen = [sample[spec.name] for row in forms for sample in row if spec.name in sample]
    sizes = np.array([math.prod(form.shape) for form in seen])
    num_bytes = int(sizes.mean() * spec.stored_dtype.itemsize * counts.num_samples)
    extent: dict[str, Any] = spread(spec, np.array([form.shape for form in seen])) if spec.is_ragged else {}
    section, classes = job.sections.get(spec.name), None
    if isinstance(section, LabelField):
        column = job.manifest.table[section.column or spec.name].to_pylist()
        classes = counts.by_class(classes_of(spec.name, section, column))
    return FieldSummary(**head_of(spec), num_bytes=num_bytes, classes=classes, **extent, **measure.summary())


def _refusal(config: Config, num_bad: int, num_rows: int, looked: _Looked) -> str:
    """Why a prepare of this would stop; "" if nothing that is known would stop it."""
    most = config.max_bad_fraction
    if num_bad > most * num_rows:
        return f"{num_bad:,} of {num_rows:,} rows are bad, more than max_bad_fraction {most:g} allows"
    return "" if looked.forms else f"none of the {looked.num_rows:,} rows looked at can be decoded"


def _disk_bytes(manifest: Manifest, sizes: Array) -> int:
    """Bytes of the rows' files, and of the tables that hold their lists or all of their values."""
    holds_values = manifest.lists is not None or not manifest.path_columns
    tables: Sequence[Path] = manifest.tables if holds_values else ()
    return int(sizes.clip(0).sum()) + sum(path.stat().st_size for path in tables)


def _plain(spec: FieldSpec) -> FieldSpec:
    """The field without encoding: as it stands in memory."""
    return FieldSpec(spec.name, spec.kind, spec.dtype, spec.shape)
