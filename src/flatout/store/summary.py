"""What is in a store, or would be: counts, shapes, ranges, bytes, and the memory it takes when cached."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flatout.config import Config
from flatout.source import scan_rows
from flatout.store.against import DryRun, dry_run
from flatout.store.commit import split_order
from flatout.store.engine import make_engine
from flatout.store.extent import compressed_bytes, shapes_in_store, spread, values_in_store
from flatout.store.index import length_column
from flatout.store.job import Job, job_from_config
from flatout.store.measure import Measure
from flatout.store.plan import stored_bytes_per_row
from flatout.store.progress import Progress, Silent
from flatout.store.reader import StoreReader
from flatout.store.specify import Forms, specify
from flatout.store.task import BadRow
from flatout.types import Array, FieldSpec

NUM_LOOKED_AT = 32
"""Rows of a manifest that are decoded to see what the samples would be."""


@dataclass(frozen=True)
class FieldSummary:
    """One field in numbers."""

    name: str
    kind: str
    dtype: str
    shape: list[int | None]
    encoding: str
    compression: str
    num_bytes: int
    """Bytes of the values as stored, before compression."""
    disk_bytes: int | None = None
    """Bytes of the values on disk, after compression; None: not made yet."""
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    num_measured: int = 0
    """Samples that low, high, mean and the two counts below were taken from."""
    num_nan: int = 0
    num_infinite: int = 0
    lengths: Mapping[str, int] | None = None
    """Shortest, median and longest sample of a field of which one axis varies, in steps along it."""
    shapes: Sequence[tuple[int, int]] | None = None
    """Smallest and largest size of each axis of a ragged field."""
    classes: Mapping[str, Mapping[str, int]] | None = None
    """Samples by class and split."""


@dataclass(frozen=True)
class Summary:
    """A store or a manifest in numbers."""

    place: str
    num_samples: int
    splits: Mapping[str, int]
    fields: Sequence[FieldSummary]
    num_shards: int = 0
    disk_bytes: int = 0
    """Bytes of the shards, or of the source files (of the manifest, where it holds the values itself)."""
    memory_bytes: int = 0
    """Bytes of all samples in memory, restored: what caching them takes."""
    num_groups: int = 0
    num_bad: int = 0
    bad: Sequence[BadRow] = ()
    notes: Sequence[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarise_store(folder: Path) -> Summary:
    """Read a store's index and, evenly spread, its values.

    Raises:
        StoreMissingError, StoreVersionError, StoreCorruptError: it cannot be read.
    """
    store = StoreReader(folder)
    counts = np.bincount(store.numbers["split"], minlength=len(store.meta.splits))
    fields = [_field_of_store(store, spec) for spec in store.meta.fields]
    return Summary(
        place=str(folder),
        num_samples=len(store),
        splits=dict(zip(store.meta.splits, counts.tolist(), strict=True)),
        fields=fields,
        num_shards=len(store.meta.shards),
        disk_bytes=sum(shard.size for shard in store.meta.shards),
        memory_bytes=sum(
            _restored_bytes(spec, f.num_bytes) for spec, f in zip(store.meta.fields, fields, strict=True)
        ),
        num_groups=len(np.unique(store.numbers["group"])),
        num_bad=store.meta.num_bad,
    )


def summarise_source(
    config: Config,
    *,
    validate: bool = False,
    progress: Progress = Silent(),  # noqa: B008  stateless
) -> Summary:
    """What a prepare of this config would find: a few rows decoded, or with `validate` every row.

    Raises:
        ConfigError, ManifestError: the settings or the manifest cannot be used.
    """
    job = job_from_config(config)
    states = scan_rows(
        job.manifest, job.columns, allow_outside=config.allow_outside_base, checksum=False, content_rows=None
    )
    probed, bad = _look(config, job)
    found = DryRun()
    fields = specify(job.sections, job.kinds, probed) if probed else ()
    if validate and fields:
        positions = np.arange(len(job.manifest))
        progress.begin("validate", len(positions))
        found = dry_run(config, job, fields, positions, progress, is_measuring=True)
        bad = found.bad
    elif not validate:
        bad = [*bad, *_missing(job, states.sizes, known={row.key for row in bad})]
    samples_per_row = float(np.mean([len(row) for row in probed])) if probed else 0.0
    num_samples = len(found.digests) if validate else round(samples_per_row * len(job.manifest))
    counts = Counter(np.asarray(job.splits).tolist())
    memory = stored_bytes_per_row([_plain(spec) for spec in fields], probed) * len(job.manifest)
    return Summary(
        place=str(config.manifest),
        num_samples=num_samples,
        splits={name: counts[name] for name in split_order(counts)},
        fields=[
            _field_of_source(spec, probed, job, num_samples, found.measures.get(spec.name, Measure()))
            for spec in fields
        ],
        disk_bytes=int(states.sizes.clip(0).sum()) or _manifest_bytes(config),
        memory_bytes=int(memory),
        num_groups=len(np.unique(job.groups)),
        num_bad=len(bad),
        bad=bad,
        notes=[*job.notes, *([] if validate else [_seen(len(probed), len(job.manifest))])],
    )


def _field_of_store(store: StoreReader, spec: FieldSpec) -> FieldSummary:
    num_items = len(store) * math.prod(n or 0 for n in spec.shape)
    if spec.is_ragged:
        num_items = int(store.numbers[length_column(spec.name)].sum())
    num_bytes = num_items * spec.stored_dtype.itemsize
    return FieldSummary(
        **_head(spec),
        num_bytes=num_bytes,
        disk_bytes=num_bytes if spec.compression == "none" else compressed_bytes(store, spec),
        classes=_classes_of_store(store, spec),
        **(spread(spec, shapes_in_store(store, spec)) if spec.is_ragged else {}),
        **values_in_store(store, spec, num_bytes),
    )


def _classes_of_store(store: StoreReader, spec: FieldSpec) -> dict[str, dict[str, int]] | None:
    if spec.kind != "label":
        return None
    labels = np.empty(len(store), np.int64)
    for number in range(len(store.meta.shards)):
        mine = store.numbers["shard"] == number
        labels[mine] = store.shard(number).data(spec.name)[store.numbers["row"][mine]]
    return _by_class(labels, spec, [store.meta.splits[n] for n in store.numbers["split"].tolist()])


def _by_class(labels: Array, spec: FieldSpec, splits: Sequence[str]) -> dict[str, dict[str, int]]:
    names = spec.classes or {int(n): str(n) for n in np.unique(labels)}
    counted: dict[str, dict[str, int]] = {}
    for label, split in zip(labels.tolist(), splits, strict=True):
        by_split = counted.setdefault(names[label], {})
        by_split[split] = by_split.get(split, 0) + 1
    return dict(sorted(counted.items()))


def _look(config: Config, job: Job) -> tuple[list[Forms], list[BadRow]]:
    """Decode rows spread evenly, in safety: a manifest is often sorted, so its first rows are alike."""
    last = len(job.manifest) - 1
    positions = np.linspace(0, last, min(NUM_LOOKED_AT, last + 1)).round().astype(np.int64)
    rows = job.manifest.rows(np.unique(positions))
    with make_engine(config.model_copy(update={"engine": "local", "num_workers": 1}), job.sys_path) as engine:
        found = engine.describe(job.maker, rows)
    return [f for f in found if not isinstance(f, BadRow)], [f for f in found if isinstance(f, BadRow)]


def _missing(job: Job, sizes: Array, known: set[str]) -> list[BadRow]:
    rows = job.manifest.rows(np.flatnonzero(sizes < 0))
    return [
        BadRow(row.key, job.maker.path_of(row), "find", "missing, unreadable or outside base_path")
        for row in rows
        if row.key not in known
    ]


def _field_of_source(
    spec: FieldSpec, probed: Sequence[Forms], job: Job, num_samples: int, measure: Measure
) -> FieldSummary:
    forms = [sample[spec.name] for row in probed for sample in row if spec.name in sample]
    sizes = np.array([math.prod(form.shape) for form in forms])
    num_bytes = int(sizes.mean() * spec.stored_dtype.itemsize * num_samples)
    extent = spread(spec, np.array([form.shape for form in forms])) if spec.is_ragged else {}
    section = job.sections.get(spec.name)
    classes = None
    if spec.kind == "label" and section is not None:
        column = job.manifest.table[section.column or spec.name].to_pylist()
        pairs = Counter(zip(map(str, column), np.asarray(job.splits).tolist(), strict=True))
        classes = {
            name: {s: n for (c, s), n in pairs.items() if c == name} for name in sorted({c for c, _ in pairs})
        }
    values = measure.summary()
    return FieldSummary(**_head(spec), num_bytes=num_bytes, classes=classes, **extent, **values)


def _head(spec: FieldSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "kind": spec.kind,
        "dtype": spec.dtype,
        "shape": list(spec.shape),
        "encoding": spec.encoding,
        "compression": spec.compression,
    }


def _seen(num_rows: int, num_all: int) -> str:
    which = f"all {num_all:,}" if num_rows == num_all else f"{num_rows:,} of {num_all:,}"
    return f"shapes and sizes from {which} rows" + ("" if num_rows == num_all else ", spread evenly")


def _manifest_bytes(config: Config) -> int:
    """Size of the manifest, or of one a split."""
    given = config.manifest
    paths = [Path(str(path)) for path in (given.values() if isinstance(given, Mapping) else [given])]
    return sum(path.stat().st_size for path in paths if path.is_file())


def _plain(spec: FieldSpec) -> FieldSpec:
    """The field without encoding: as it stands in memory."""
    return FieldSpec(spec.name, spec.kind, spec.dtype, spec.shape)


def _restored_bytes(spec: FieldSpec, stored_bytes: int) -> int:
    return stored_bytes // spec.stored_dtype.itemsize * np.dtype(spec.dtype).itemsize
