"""RawSource: what the raw files of a config give, known without decoding them all: fields and sample numbers.

Shapes and dtypes come from the first rows, as in a prepare, or from a store of the same settings. Where one
file gives several samples (windows, cycles), nobody knows how many before it is decoded: a store of the same
settings knows, otherwise each row of the split is decoded once, in worker processes, when the split is opened.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flatout.config import Config, load_config
from flatout.errors import ConfigError, LoaderError
from flatout.lazy import cached_property
from flatout.loader.samples import mean_bytes
from flatout.source import hash_key
from flatout.store import StoreReader, is_store
from flatout.store.against import dry_run
from flatout.store.commit import read_quarantine
from flatout.store.index import read_index
from flatout.store.job import Job, job_from_config, with_recorded
from flatout.store.progress import Silent
from flatout.store.receipt import BadRow
from flatout.store.samples import RowFinder, row_hashes
from flatout.store.specify import NUM_PROBED, Forms, specify
from flatout.store.task import describe
from flatout.store.versions import classes_of_root
from flatout.types import Array, FieldSpec

WHOLE = -1
"""Part of a sample that is its whole row."""


@dataclass(frozen=True)
class Numbering:
    """The samples of a split in manifest order: which row, and which part of it."""

    rows: Array
    parts: Array

    def __len__(self) -> int:
        return len(self.rows)


class RawSource:
    """Rows of a config's manifest and how they become samples.

    Raises:
        ConfigError, ManifestError: the settings or the manifest cannot be used.
        LoaderError: none of the first rows gives a sample.
    """

    def __init__(self, config: Config | Mapping[str, Any] | str | Path) -> None:
        self.config = load_config(config)
        store = self._find_store()
        if store is not None:
            self.config = with_recorded(self.config, store.meta.settings)
        self.job: Job = job_from_config(self.config, {} if store is None else classes_of_root(store.folder))
        is_same = store is not None and store.meta.fingerprint.get("digest") == self.job.fingerprint.digest
        self.store = store if is_same else None
        """The store of the same settings, if there is one."""
        self._numberings: dict[str | None, Numbering] = {}

    @cached_property
    def fields(self) -> dict[str, FieldSpec]:
        """Specification of each field, as a store has it."""
        if self.store is not None:
            return self.store.fields
        return {spec.name: spec for spec in specify(self.job.sections, self.job.kinds, self._probed)}

    @cached_property
    def sample_bytes(self) -> int:
        """Mean bytes of a sample."""
        if self.store is not None:
            return mean_bytes(self.store, np.arange(len(self.store)), is_restored=True)
        samples = [sample for row in self._probed for sample in row]
        sizes = {name: np.dtype(spec.dtype).itemsize for name, spec in self.fields.items()}
        totals = [sum(math.prod(s[name].shape) * sizes[name] for name in s if name in sizes) for s in samples]
        return math.ceil(sum(totals) / len(totals))

    @property
    def splits(self) -> list[str]:
        """Names of the splits that have rows."""
        return sorted(set(self.job.splits.tolist()))

    def numbering(self, split: str | None = None) -> Numbering:
        """The samples of a split.

        Rows that the store has in quarantine are left out; other rows that cannot be decoded are not: they
        count as one sample, whose reading fails.
        """
        if split not in self._numberings:
            self._numberings[split] = self._number(split)
        return self._numberings[split]

    def _number(self, split: str | None) -> Numbering:
        rows = np.arange(len(self.job.manifest)) if split is None else np.flatnonzero(self.job.splits == split)
        known, barred = self._known
        known = Numbering(*(column[np.isin(known.rows, rows)] for column in (known.rows, known.parts)))
        unknown = np.setdiff1d(rows, np.concatenate([known.rows, barred]))
        if self.config.limit is not None:
            unknown = unknown[unknown < self.config.limit]
        found = self._count(unknown) if self._has_parts else Numbering(unknown, np.full(len(unknown), WHOLE))
        all_rows = np.concatenate([known.rows, found.rows])
        all_parts = np.concatenate([known.parts, found.parts])
        order = np.lexsort((all_parts, all_rows))
        return Numbering(all_rows[order], all_parts[order])

    def _find_store(self) -> StoreReader | None:
        folder = self.config.preprocessed_data_dir
        return StoreReader(folder) if folder is not None and is_store(Path(folder)) else None

    @cached_property
    def _known(self) -> tuple[Numbering, Array]:
        """What the store says: samples of rows that it has, and rows that it has in quarantine."""
        nothing = np.empty(0, np.int64)
        if self.store is None:
            return Numbering(nothing, nothing), nothing
        finder = RowFinder(self.job.key_hashes, self.job.manifest.keys)
        samples = read_index(self.store.index_path, ["key_hash", "part", "key"], len(self.store))
        rows, parts = finder.positions(row_hashes(samples)), samples["part"].to_numpy()
        quarantined = [hash_key(key) for key in read_quarantine(self.store.folder)]
        barred = finder.positions(np.array(quarantined, np.uint64))
        return Numbering(rows[rows >= 0], parts[rows >= 0]), barred[barred >= 0]

    @property
    def _has_parts(self) -> bool:
        """Whether rows may give several samples, by the samples there are or the first rows."""
        if self.store is not None and len(self._known[0]):
            return bool((self._known[0].parts != WHOLE).any())
        return any(len(forms) > 1 for forms in self._probed) or _splits_signals(self.job)

    def _count(self, rows: Array) -> Numbering:
        """Decode every row once to see how many samples it gives."""
        if not len(rows):
            return Numbering(rows, rows)
        found = dry_run(self.config, self.job, list(self.fields.values()), rows, Silent())
        keys = self.job.manifest.take(rows).keys.to_pylist()
        place = dict(zip(keys, rows.tolist(), strict=True))
        pairs = [_row_and_part(key, place) for key in found.digests]
        pairs += [(place[row.key], WHOLE) for row in found.bad]
        table = np.array(sorted(pairs), np.int64).reshape(-1, 2)
        return Numbering(table[:, 0], table[:, 1])

    @cached_property
    def _probed(self) -> list[Forms]:
        """Forms of the first rows that can be decoded."""
        first_bad: BadRow | None = None
        for rows in self._first_rows():
            found = describe(self.job.maker, self.job.manifest.rows(rows))
            good = [forms for forms in found if not isinstance(forms, BadRow)]
            if good:
                return good
            first_bad = first_bad or next(row for row in found if isinstance(row, BadRow))
        if first_bad is None:
            raise ConfigError(f"{self.config.manifest}: the manifest has no rows")
        raise LoaderError(
            f"no row gives a sample. The first, '{first_bad.key}' ({first_bad.path}): "
            f"{first_bad.stage}: {first_bad.error}"
        )

    def _first_rows(self) -> Iterator[Sequence[int]]:
        count = min(len(self.job.manifest), self.config.limit or len(self.job.manifest))
        return (range(at, min(at + NUM_PROBED, count)) for at in range(0, count, NUM_PROBED))


def _splits_signals(job: Job) -> bool:
    return any(getattr(section, "split", "none") != "none" for section in job.sections.values())


def _row_and_part(key: str, place: Mapping[str, int]) -> tuple[int, int]:
    """Manifest position and part of a sample, by its key `ROW` or `ROW#0003`."""
    if key in place:
        return place[key], WHOLE
    row, _, part = key.rpartition("#")
    return place[row], int(part)
