"""The plan: a law for rows a shard, and a digest of everything that decides bytes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.store.plan import (
    MIN_SHARD_BYTES,
    MIN_SHARDS,
    MOST_ROWS,
    make_plan,
    rows_per_shard,
    stored_bytes_per_row,
)
from flatout.store.specify import ArrayForm
from flatout.store.task import SHARD_BYTES
from flatout.types import FieldSpec

FIELDS = (FieldSpec("x", "array", "float32", (3,)),)


def plan_of(todo: Any = range(10), **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "probed": np.arange(8, dtype=np.uint64),
        "key_hashes": np.arange(100, dtype=np.uint64) * 7,
        "fields": FIELDS,
        "fingerprint": "f00",
        "per_shard": 4,
        "first_task": 5,
    }
    return make_plan(np.array(todo, np.int64), **{**settings, **changes})


@given(bytes_per_row=st.floats(0, 1e12), num_rows=st.integers(0, 10**9))
def test_rows_per_shard_is_a_clamp(bytes_per_row: float, num_rows: int) -> None:
    found = rows_per_shard(bytes_per_row, num_rows)
    bytes_per_row = max(bytes_per_row, 1.0)
    assert 1 <= found <= MOST_ROWS
    assert found == 1 or found * bytes_per_row <= SHARD_BYTES
    wanted = math.ceil(num_rows / MIN_SHARDS)
    if found < wanted:  # cut finer only where 64 shards would be too large
        assert found in (1, MOST_ROWS) or (found + 1) * bytes_per_row > SHARD_BYTES
    if found > max(wanted, 1):  # fewer than 64 only where they would be tiny
        assert (found - 1) * bytes_per_row < MIN_SHARD_BYTES


@pytest.mark.parametrize(
    ("bytes_per_row", "num_rows", "expected"),
    [
        (1 << 20, 10**6, 64),  # 64 MiB
        (1 << 20, 640, 10),  # 64 shards
        (100 << 20, 10, 1),  # a sample larger than a shard is a shard of its own
        (1, 100, 65536),  # all in one rather than tiny ones
        (0.0, 0, 65536),
        (8, 10**8, MOST_ROWS),  # and not 1.5 million, whose keys alone would fill a worker
    ],
)
def test_rows_per_shard(bytes_per_row: float, num_rows: int, expected: int) -> None:
    assert rows_per_shard(bytes_per_row, num_rows) == expected


@given(num_rows=st.integers(0, 50), per_shard=st.integers(1, 20), first_task=st.integers(0, 9))
def test_every_row_is_in_one_task_in_order(num_rows: int, per_shard: int, first_task: int) -> None:
    todo = np.arange(num_rows) * 2
    plan = plan_of(todo, per_shard=per_shard, first_task=first_task)
    numbers = list(plan.task_numbers())
    assert numbers == list(range(first_task, first_task + plan.num_tasks))
    parts = [plan.positions(number) for number in numbers]
    assert all(0 < len(part) <= per_shard for part in parts)
    assert np.concatenate([np.empty(0), *parts]).tolist() == todo.tolist()


def test_the_digest_covers_what_decides_bytes_and_nothing_else() -> None:
    base = plan_of()
    assert plan_of().digest == base.digest
    other_rows = np.arange(100, dtype=np.uint64) * 7
    other_rows[50:] = 0  # rows that are not made
    assert plan_of(key_hashes=other_rows).digest == base.digest
    changed = [
        plan_of(range(11)),
        plan_of(range(9, -1, -1)),
        plan_of(probed=np.arange(8, dtype=np.uint64) + 1),
        plan_of(key_hashes=np.arange(100, dtype=np.uint64)),
        plan_of(fields=(replace(FIELDS[0], encoding="uint8"),)),
        plan_of(fields=(replace(FIELDS[0], compression="zstd"),)),
        plan_of(fingerprint="f01"),
        plan_of(per_shard=5),
        plan_of(first_task=6),
    ]
    assert len({base.digest, *(plan.digest for plan in changed)}) == len(changed) + 1


def test_bytes_of_a_row_are_those_stored() -> None:
    fields = (FieldSpec("x", "array", "float32", (4,), encoding="uint8"), FieldSpec("y", "label", "int64", ()))
    one = {"x": ArrayForm("<f4", (4,)), "y": ArrayForm("<i8", ())}
    two = {"x": ArrayForm("<f4", (8,)), "y": ArrayForm("<i8", ()), "extra": ArrayForm("<f8", (99,))}
    assert stored_bytes_per_row(fields, [[one], [one, two]]) == (12 + 12 + 16) / 2
    assert stored_bytes_per_row(fields, []) == 0.0
