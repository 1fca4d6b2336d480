"""How many samples the rows of a manifest give, or would: by split and by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatout.config.fields import LabelField
from flatout.errors import SampleError
from flatout.source import key_hashes, read_label
from flatout.store.against import DryRun
from flatout.store.commit import split_order
from flatout.store.job import Job
from flatout.store.receipt import BadRow
from flatout.store.samples import RowFinder
from flatout.types import Array


@dataclass(frozen=True)
class Counts:
    """How many samples each row gives, or is expected to give."""

    per_row: Array
    """0 for rows that are known to be bad."""
    splits: Array
    """Split of each row."""

    @property
    def num_samples(self) -> int:
        """The sum of what the splits show."""
        return sum(self.by_split().values())

    def by_split(self) -> dict[str, int]:
        """Samples of each split that has any."""
        names, codes = np.unique(self.splits, return_inverse=True)
        sums = np.bincount(codes, self.per_row).round().astype(int).tolist()
        found = {str(name): num for name, num in zip(names, sums, strict=True) if num}
        return {name: found[name] for name in split_order(found)}

    def by_class(self, classes: Sequence[str | None]) -> dict[str, dict[str, int]]:
        """Samples by class and split, of the class that each row has; rows that have none are bad."""
        sums: Counter[tuple[str, str]] = Counter()
        for name, split, num in zip(classes, self.splits.tolist(), self.per_row.tolist(), strict=True):
            if num and name is not None:
                sums[name, split] += num
        found: dict[str, dict[str, int]] = {}
        for (name, split), num in sorted(sums.items()):
            found.setdefault(name, {})[split] = round(num)
        return found


def counted(job: Job, found: DryRun) -> Counts:
    """By the samples that every row gave."""
    rows = _rows_of(RowFinder(job.key_hashes, job.manifest.keys), list(found.digests))
    return Counts(np.bincount(rows, minlength=len(job.manifest)).astype(np.float64), np.asarray(job.splits))


def expected(job: Job, bad: Sequence[BadRow], samples_per_row: float) -> Counts:
    """By what rows gave on average, and none of the bad ones."""
    per_row = np.full(len(job.manifest), samples_per_row)
    finder = RowFinder(job.key_hashes, job.manifest.keys)
    per_row[finder.positions(key_hashes([row.key for row in bad]))] = 0.0
    return Counts(per_row, np.asarray(job.splits))


def _rows_of(finder: RowFinder, sample_keys: list[str]) -> Array:
    """Manifest position of each sample, by its key `ROW` or `ROW#0003`."""
    rows = finder.positions(key_hashes(sample_keys))
    pieces = np.flatnonzero(rows < 0)
    rows[pieces] = finder.positions(key_hashes([sample_keys[at].rpartition("#")[0] for at in pieces.tolist()]))
    return rows


def classes_of(name: str, section: LabelField, column: Sequence[Any]) -> list[str | None]:
    """The class of each cell, as a store of it would name it; None where it would be refused."""
    positions = {text: at for at, text in enumerate(section.classes or ())}
    known: dict[Any, str | None] = {}
    for value in set(column):
        try:
            number = read_label(name, value, positions or None)
            known[value] = section.classes[number] if section.classes else str(number)
        except SampleError:
            known[value] = None
    return [known[value] for value in column]
