"""The index: its columns, what is loaded of it, and damaged ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import StoreCorruptError
from flatout.store import StoreReader
from flatout.store import index as indexes
from flatout.store.index import NUMBERS, index_schema, read_index, rows_by_shard, write_index
from flatout.types import FieldSpec

FIELDS = (FieldSpec("image", "array", "float32", (4, 5)), FieldSpec("text", "text", "uint8", (None,)))


def table_of(num_rows: int) -> Any:
    schema = index_schema(FIELDS)
    numbers = np.arange(num_rows)
    columns = []
    for field in schema:
        if field.type == pa.string():
            columns.append(pa.array([f"{field.name} {number:090d}" for number in numbers]))
        elif field.name == "split":
            columns.append(pa.array(numbers % 3, pa.int8()))
        else:
            columns.append(pa.array(numbers).cast(field.type))
    return pa.table(columns, schema=schema)


def test_the_columns_are_what_the_format_says() -> None:
    assert [(field.name, str(field.type)) for field in index_schema(FIELDS)] == [
        ("key_hash", "uint64"),
        ("split", "int8"),
        ("group", "uint64"),
        ("shard", "int32"),
        ("row", "int32"),
        ("length_text", "int64"),
        ("part", "int32"),
        ("digest", "uint64"),
        ("fingerprint", "uint64"),
        ("by_content", "bool"),
        ("size", "int64"),
        ("mtime_ns", "int64"),
        ("key", "string"),
        ("path", "string"),
    ]


def test_round_trip_under_a_name_of_its_content(tmp_path: Path) -> None:
    name, digest = write_index(tmp_path, table_of(100))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert name == f"index-{digest[:16]}.parquet"
    assert blake3((tmp_path / name).read_bytes()).hexdigest() == digest
    assert read_index(tmp_path / name).equals(table_of(100))
    assert write_index(tmp_path, table_of(100)) == (name, digest)


def test_row_groups_join_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "ROW_GROUP", 30)
    name, _ = write_index(tmp_path, table_of(100))
    assert pq.ParquetFile(tmp_path / name).num_row_groups == 4
    assert read_index(tmp_path / name, ["row"])["row"].to_pylist() == list(range(100))


def test_loading_the_numbers_takes_no_memory_for_the_strings(tmp_path: Path) -> None:
    num_rows = 100_000
    name, _ = write_index(tmp_path, table_of(num_rows))
    before = pa.total_allocated_bytes()
    table = read_index(tmp_path / name, list(NUMBERS))
    assert pa.total_allocated_bytes() - before < 80 * num_rows  # the strings alone have 190
    assert table.column_names == list(NUMBERS)


def test_a_reader_loads_numbers_only(stored: Path) -> None:
    store = StoreReader(stored)
    kinds = {name: column.dtype.kind for name, column in store.numbers.items()}
    expected = [*NUMBERS, "length_series", "length_text"]
    assert list(kinds) == expected
    assert set(kinds.values()) <= {"i", "u"}


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "hash_file", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_index(tmp_path, table_of(3))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"PAR1", b"x" * 1000, None])
def test_what_is_no_index_is_corrupt(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "index-0000000000000000.parquet"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(StoreCorruptError, match="--repair' rebuilds it"):
        read_index(path)


def packed(path: Path, num_rows: int) -> None:
    """An index of equal rows, as a forger packs it."""
    table = pa.table({"key_hash": pa.array(np.zeros(num_rows, np.uint64))})
    pq.write_table(table, path, compression="zstd", use_dictionary=True)


def test_more_rows_than_the_file_can_hold_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "index-0000000000000000.parquet"
    packed(path, 1_000_000)
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *a, **k: pytest.fail("it was read"))
    with pytest.raises(StoreCorruptError, match="cannot hold 1,000,000 rows"):
        read_index(path)
    with pytest.raises(StoreCorruptError, match="has 1,000,000 rows, the root says 12"):
        read_index(path, num_rows=12)


@pytest.mark.parametrize("num_rows", [0, 1, 2000])
def test_our_own_index_is_never_too_small_for_its_rows(tmp_path: Path, num_rows: int) -> None:
    name, _ = write_index(tmp_path, table_of(num_rows))
    assert read_index(tmp_path / name, num_rows=num_rows).num_rows == num_rows


def test_a_footer_that_contradicts_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _ = write_index(tmp_path, table_of(100))
    column = SimpleNamespace(num_values=10**9)
    group = SimpleNamespace(num_rows=100, num_columns=1, column=lambda number: column)
    footer = SimpleNamespace(num_rows=100, num_row_groups=1, row_group=lambda number: group)
    monkeypatch.setattr(pq.ParquetFile, "metadata", footer)
    with pytest.raises(StoreCorruptError, match="contradicts itself"):
        read_index(tmp_path / name)


@given(shards=st.lists(st.integers(-1, 6)), num_shards=st.integers(0, 6))
def test_rows_by_shard_is_a_scan_for_each_shard(shards: list[int], num_shards: int) -> None:
    column = np.array(shards, np.int32)
    found = rows_by_shard(column, num_shards)
    assert [part.tolist() for part in found] == [
        np.flatnonzero(column == number).tolist() for number in range(num_shards)
    ]
