"""List columns: cells find their lists in any row group, and broken lists fail alone."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.errors import ManifestError, SampleError
from flatout.source import lists as lists_module
from flatout.source.files import file_state
from flatout.source.lists import ListCell, ListColumns, join_lists, read_cells


def write(path: Path, table: pa.Table, rows_per_group: int = 2) -> ListColumns:
    pq.write_table(table, path, row_group_size=rows_per_group)
    return places(path, table.column_names)


def places(path: Path, names: Sequence[str]) -> ListColumns:
    return ListColumns.of_file(path, names, pq.read_metadata(path), file_state(path))


def cells_of(lists: ListColumns, index: int) -> dict[str, ListCell]:
    return {name: cell for name, cell in lists.cells(index).items() if cell is not None}


LISTS = [
    pa.list_(pa.int16()), pa.large_list(pa.int16()), pa.list_(pa.float32()), pa.list_(pa.uint8()),
    pa.list_(pa.float64()), pa.list_(pa.bool_()),
]  # fmt: skip


@pytest.mark.parametrize("kind", LISTS, ids=str)
def test_each_row_gives_its_own_list(tmp_path: Path, kind: pa.DataType) -> None:
    values = [[1, 0, 1], [], [0, 1], [1], [1, 1, 1, 1]]
    lists = write(tmp_path / "a.parquet", pa.table({"x": pa.array(values, pa.list_(pa.int8())).cast(kind)}))
    for i in (4, 0, 3, 1, 2):
        decoded = read_cells(cells_of(lists, i))
        np.testing.assert_array_equal(decoded.array[:, 0], values[i])
        assert decoded.array.dtype == kind.value_type.to_pandas_dtype()
        assert decoded.info == {"columns": ["x"]}


def test_fixed_size_lists_with_nulls_between(tmp_path: Path) -> None:
    column = pa.array([[1, 2], None, [5, 6]], pa.list_(pa.int32(), 2))
    lists = write(tmp_path / "a.parquet", pa.table({"x": column}), 3)
    assert read_cells(cells_of(lists, 2)).array.tolist() == [[5], [6]]
    with pytest.raises(SampleError, match="has no list"):
        read_cells(cells_of(lists, 1))


def test_columns_become_channels_in_the_order_asked_for(tmp_path: Path) -> None:
    table = pa.table(
        {"dx": pa.array([[1, 2]], pa.list_(pa.int16())), "dy": pa.array([[3, 4]], pa.list_(pa.int16()))}
    )
    cells = cells_of(write(tmp_path / "a.parquet", table), 0)
    both = read_cells(cells).array
    assert both.tolist() == [[1, 3], [2, 4]]
    assert both.dtype == np.int16
    assert read_cells({"dy": cells["dy"], "dx": cells["dx"]}).array.tolist() == [[3, 1], [4, 2]]


def test_the_dtype_is_the_common_one(tmp_path: Path) -> None:
    table = pa.table(
        {"a": pa.array([[1]], pa.list_(pa.int16())), "b": pa.array([[0.5]], pa.list_(pa.float32()))}
    )
    assert read_cells(cells_of(write(tmp_path / "a.parquet", table), 0)).array.dtype == np.float32


@pytest.mark.parametrize(
    ("row", "message"),
    [(0, "differ in length: a 2, b 1"), (1, "'a' has no list"), (2, "missing value at position 1")],
)
def test_a_bad_row_fails_alone(tmp_path: Path, row: int, message: str) -> None:
    table = pa.table({"a": [[1, 2], None, [1, None], [7, 8]], "b": [[1], [1], [1, 2], [9, 9]]})
    lists = write(tmp_path / "a.parquet", table, 4)
    with pytest.raises(SampleError, match=message) as caught:
        read_cells(cells_of(lists, row))
    assert caught.value.stage == "decode"
    assert read_cells(cells_of(lists, 3)).array.tolist() == [[7, 9], [8, 9]]


def test_a_group_is_read_once_while_its_rows_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    real = pq.ParquetFile
    lists = write(
        tmp_path / "a.parquet", pa.table({"x": [[i] for i in range(6)], "y": [[i] for i in range(6)]}), 3
    )
    monkeypatch.setattr(lists_module.pq, "ParquetFile", lambda path: opened.append(path) or real(path))
    for i in range(6):
        cells = cells_of(lists, i)
        read_cells({"x": cells["x"]})
        read_cells({"y": cells["y"]})
    assert len(opened) == 4


def test_a_rewritten_file_is_refused_until_its_rows_are_read_anew(tmp_path: Path) -> None:
    """Where a row stood there may be another now, which looks as good."""
    path = tmp_path / "a.parquet"
    lists = write(path, pa.table({"x": [[1], [2], [3]], "y": [[1], [2], [3]]}), 1)
    first, second = cells_of(lists, 0), cells_of(lists, 1)
    assert read_cells({"x": first["x"]}).array.item() == 1
    again = write(tmp_path / "b.parquet", pa.table({"x": [[3], [1], [2]], "y": [[3], [1], [2]]}), 1)
    (size, time_ns), other_size = lists.states[0], again.states[0][0]
    assert other_size == size
    os.utime(tmp_path / "b.parquet", ns=(0, time_ns + 1))
    (tmp_path / "b.parquet").replace(path)
    assert read_cells({"x": first["x"]}).array.item() == 1  # what it was, from memory
    for cells in ({"y": first["y"]}, second):
        with pytest.raises(SampleError, match=r"was changed after its rows were read; run prepare again"):
            read_cells(cells)
    with pytest.raises(ManifestError, match="was changed after its rows were read"):
        lists.digests("x")
    anew = places(path, ["x"])
    assert [read_cells(cells_of(anew, at)).array.item() for at in range(3)] == [3, 1, 2]


def test_a_file_that_changes_back_and_forth_is_never_taken_for_another(tmp_path: Path) -> None:
    """A process that lives long keeps the last group that it read: it is known by the file's state, too."""
    path = tmp_path / "a.parquet"
    first = write(path, pa.table({"x": [[1], [2]]}))
    assert read_cells(cells_of(first, 0)).array.item() == 1
    second = write(path, pa.table({"x": [[7], [8], [9]]}))
    assert read_cells(cells_of(second, 0)).array.item() == 7


def test_a_shorter_file_is_called_changed_and_not_damaged(tmp_path: Path) -> None:
    lists = write(tmp_path / "a.parquet", pa.table({"x": [[1], [2], [3], [4]]}))
    write(tmp_path / "a.parquet", pa.table({"x": [[1], [2]]}))
    with pytest.raises(SampleError, match="was changed after its rows were read"):
        read_cells(cells_of(lists, 3))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_file_that_is_replaced_around_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Neither by rows that stand elsewhere now, nor by ones that were read while it went on, under one size."""
    path, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    lists = write(path, pa.table({"x": [[1], [2]]}))
    write(other, pa.table({"x": [[2], [1]]}))
    os.utime(other, ns=(0, lists.states[0][1] + 1))
    real = pq.ParquetFile

    def opened(place: Path) -> Any:
        if moment == "before":
            other.replace(path)
        file = real(place)
        if moment == "after":
            other.replace(path)
        return file

    monkeypatch.setattr(lists_module.pq, "ParquetFile", opened)
    with pytest.raises(SampleError, match="was changed after its rows were read"):
        read_cells(cells_of(lists, 0))


def test_files_that_vanish_or_break(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    lists = write(path, pa.table({"x": [[i] * 100 for i in range(4)]}), 4)
    data = bytearray(path.read_bytes())
    data[4:60] = bytes(56)
    path.write_bytes(data)
    lists = places(path, ["x"])
    with pytest.raises(SampleError, match="row group 0, column 'x'"):
        read_cells(cells_of(lists, 0))
    assert lists.digests("x").tolist() == [0] * 4
    path.unlink()
    with pytest.raises(SampleError, match="No such file") as caught:
        read_cells(cells_of(lists, 0))
    assert caught.value.stage == "find"
    write(path, pa.table({"x": [[1]]}))
    with pytest.raises(SampleError, match="was changed after its rows were read"):
        read_cells(cells_of(lists, 3))


def test_cells_are_small_and_survive_a_pickle(tmp_path: Path) -> None:
    cell = cells_of(write(tmp_path / "a.parquet", pa.table({"x": [[1], [2], [3]]})), 2)["x"]
    assert cell == ListCell(tmp_path / "a.parquet", 1, 0, "x", (0, 0, 0))
    assert pickle.loads(pickle.dumps(cell)) == cell
    assert len(pickle.dumps(cell)) < 1000


def test_joined_lists_point_into_their_own_files(tmp_path: Path) -> None:
    a = write(tmp_path / "a.parquet", pa.table({"x": [[1], [2]]}))
    b = write(tmp_path / "b.parquet", pa.table({"x": [[3], [4], [5]]}))
    joined = join_lists([(a, 2), (None, 1), (b, 3)])
    assert joined is not None
    assert len(joined) == 6
    found = [read_cells(cells_of(joined, i)).array.item() if i != 2 else None for i in range(6)]
    assert found == [1, 2, None, 3, 4, 5]
    assert joined.cells(2) == {"x": None}
    picked = joined.take(np.array([5, 0]))
    assert [read_cells(cells_of(picked, i)).array.item() for i in (0, 1)] == [5, 1]
    assert joined.digests("x").tolist() == [*a.digests("x"), 0, *b.digests("x")]
    assert join_lists([(None, 3)]) is None


ROWS = st.lists(st.none() | st.lists(st.none() | st.integers(-100, 100), max_size=4), min_size=1, max_size=9)


@settings(max_examples=40)
@given(rows=ROWS, group=st.integers(1, 4), seed=st.integers(0, 99))
def test_digests_follow_content_alone(
    tmp_path_factory: pytest.TempPathFactory, rows: list[object], group: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("lists")
    order = np.random.default_rng(seed).permutation(len(rows))
    one = write(folder / "a.parquet", pa.table({"x": pa.array(rows, pa.list_(pa.int16()))}), group)
    other = pa.array([rows[i] for i in order], pa.large_list(pa.int16()))
    two = write(folder / "b.parquet", pa.table({"x": other}), 9)
    np.testing.assert_array_equal(one.digests("x")[order], two.digests("x"))
    distinct = {repr(row) for row in rows}
    assert len(set(one.digests("x").tolist())) == len(distinct)


def test_digests_tell_dtypes_apart(tmp_path: Path) -> None:
    a = write(tmp_path / "a.parquet", pa.table({"x": pa.array([[1, 0]], pa.list_(pa.int16()))}))
    b = write(tmp_path / "b.parquet", pa.table({"x": pa.array([[1]], pa.list_(pa.int32()))}))
    assert a.digests("x")[0] != b.digests("x")[0]
