"""The plan: which rows go into which shard. A function of manifest, config and the first samples alone."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from blake3 import blake3

from flatout.store.metadata import IDENTITY
from flatout.store.specify import Forms
from flatout.store.task import SHARD_BYTES
from flatout.types import Array, FieldSpec

MIN_SHARD_BYTES = 64 << 10
"""No shard is planned smaller than this while there are rows for it: its tables would outweigh its samples."""
MOST_ROWS = 1 << 17
"""However small: what is known of each (key, crc, what it was made from) takes a worker 460 bytes."""
MIN_SHARDS = 64
"""A small set is still cut into this many shards, so that every core has work until the end."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Rows to make, cut into tasks of `rows_per_shard` in manifest order."""

    todo: Array
    """Manifest positions of the rows to make."""
    rows_per_shard: int
    first_task: int
    digest: str
    """Hash of keys, fields, code and the first rows' files: equal plans give equal shards of equal files."""

    @property
    def num_tasks(self) -> int:
        return -(-len(self.todo) // self.rows_per_shard)

    def task_numbers(self) -> range:
        return range(self.first_task, self.first_task + self.num_tasks)

    def positions(self, task: int) -> Array:
        """Manifest positions of one task's rows, in order."""
        start = (task - self.first_task) * self.rows_per_shard
        return self.todo[start : start + self.rows_per_shard]


def rows_per_shard(bytes_per_row: float, num_rows: int) -> int:
    """64 MiB of samples, at least one row; smaller sets are cut into 64 shards, but none below 64 KiB."""
    most = min(MOST_ROWS, int(SHARD_BYTES // max(bytes_per_row, 1.0)))
    fewest = math.ceil(MIN_SHARD_BYTES / max(bytes_per_row, 1.0))
    return max(1, min(most, max(fewest, math.ceil(num_rows / MIN_SHARDS))))


def stored_bytes_per_row(fields: Sequence[FieldSpec], probed: Sequence[Forms]) -> float:
    """Mean bytes that one row takes in the store before compression, by the first rows."""
    dtypes = {spec.name: spec.stored_dtype for spec in fields}
    totals = [
        sum(
            math.prod(form.shape) * dtypes[name].itemsize
            for sample in row
            for name, form in sample.items()
            if name in dtypes  # a field that the first sample does not have is not stored
        )
        for row in probed
    ]
    return float(np.mean(totals)) if totals else 0.0


def make_plan(
    todo: Array,
    probed: Array,
    key_hashes: Array,
    fields: Sequence[FieldSpec],
    fingerprint: str,
    per_shard: int,
    first_task: int,
) -> Plan:
    """Cut the rows to make into tasks of `per_shard` rows, numbered from `first_task`.

    Args:
        probed: fingerprints of the rows that settled the fields' forms.
    """
    hasher = blake3()
    settings = {
        "identity": IDENTITY,
        "fields": [asdict(spec) for spec in fields],
        "fingerprint": fingerprint,
        "rows_per_shard": per_shard,
        "first_task": first_task,
    }
    hasher.update(json.dumps(settings, sort_keys=True).encode())
    hasher.update(np.ascontiguousarray(key_hashes[todo]).tobytes())
    hasher.update(np.ascontiguousarray(probed).tobytes())
    return Plan(todo, per_shard, first_task, hasher.hexdigest())
