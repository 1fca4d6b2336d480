"""The quick look at a shard: true for what we write; what it must refuse is in `test_shard_file.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import h5py
import numpy as np
import pytest

from flatout.store import shard_file
from flatout.store.shard_look import is_as_planned
from flatout.store.shard_reader import ShardReader
from flatout.types import FieldSpec

FIELDS = (
    FieldSpec("fixed", "array", "float32", (3, 2)),
    FieldSpec("flag", "array", "bool", ()),
    FieldSpec("text", "text", "uint8", (None,)),
    FieldSpec("maps", "image", "int64", (1, None, None)),
    FieldSpec("coarse", "array", "float32", (2,), encoding="uint8"),
    FieldSpec("packed", "array", "int16", (4,), compression="gzip"),
    FieldSpec("loose", "sequence", "float64", (None, 2), compression="zstd"),
    FieldSpec("void", "array", "float32", (0,)),
)
WRITTEN = pytest.mark.parametrize("num_rows", [1, 5])


@pytest.fixture
def shard(write_shard: Callable[..., ShardReader], num_rows: int) -> ShardReader:
    samples = [
        {
            "fixed": np.full((3, 2), n, np.float32),
            "flag": np.array(n % 2 == 0),
            "text": np.full(n, n, np.uint8),
            "maps": np.full((1, n, 2), n, np.int64),
            "coarse": np.arange(2, dtype=np.float32),
            "packed": np.full(4, n, np.int16),
            "loose": np.full((n, 2), n, np.float64),
            "void": np.zeros(0, np.float32),
        }
        for n in range(num_rows)
    ]
    return write_shard(FIELDS, samples)


@WRITTEN
def test_every_form_that_we_write_looks_right(shard: ShardReader) -> None:
    assert is_as_planned(shard.path, FIELDS, shard.meta)


@WRITTEN
def test_a_good_shard_is_not_walked_through(shard: ShardReader, monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(*_: object) -> None:
        raise AssertionError("walked")

    monkeypatch.setattr(shard_file, "_plain_datasets", walk)
    shard_file.check_through_libhdf5(shard.path, FIELDS, shard.meta)


@WRITTEN
def test_another_root_does_not(shard: ShardReader) -> None:
    meta, fields = shard.meta, list(FIELDS)
    assert not is_as_planned(shard.path, FIELDS, replace(meta, rows=meta.rows + 1))
    assert not is_as_planned(shard.path, FIELDS, replace(meta, size=meta.at[0] or 1))
    assert not is_as_planned(shard.path, FIELDS, replace(meta, at=meta.at[1:]))
    moved = tuple(at if at is None else at + 8 for at in meta.at)
    assert not is_as_planned(shard.path, FIELDS, replace(meta, at=moved))
    fields[0] = replace(fields[0], shape=(2, 3))
    assert not is_as_planned(shard.path, fields, meta)
    fields[0] = replace(FIELDS[0], dtype="int32")
    assert not is_as_planned(shard.path, fields, meta)
    assert not is_as_planned(shard.path.with_name("none.h5"), FIELDS, meta)


@WRITTEN
def test_nor_does_a_file_with_one_name_more(shard: ShardReader) -> None:
    with h5py.File(shard.path, "r+") as file:
        file.create_group("flatout/more")
    assert not is_as_planned(shard.path, FIELDS, shard.meta)
