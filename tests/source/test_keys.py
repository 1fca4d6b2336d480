"""Keys: where they come from, that they are unique, and that other rows never change them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import ManifestError
from flatout.source.identity import hash_key
from flatout.source.keys import choose_keys, key_hashes
from flatout.source.lists import ListColumns


def keys_of(
    columns: dict[str, object], paths: tuple[str, ...] = (), asked: str | None = None
) -> tuple[list[str], str]:
    keys, told = choose_keys(pa.table(columns), paths, asked)
    return keys.to_pylist(), told


def test_the_column_asked_for_wins() -> None:
    keys, told = keys_of({"id": ["a", "b"], "n": [10, 20]}, asked="n")
    assert keys == ["10", "20"]
    assert told == "key: column 'n'"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", "b", "a", "c", "a"], "rows 1, 3, 5 are all 'a'"),
        (["z", "a", "b", "b", "z"], "rows 3, 4 are all 'b'"),
        (["a"] * 9, "rows 1, 2, 3, 4, 5, ... are all 'a'"),
        (["a", None], "empty in row 2"),
        (["", "a"], "empty in row 1"),
    ],
)
def test_a_bad_key_column_names_its_rows(values: list[str | None], message: str) -> None:
    with pytest.raises(ManifestError, match=message.replace(".", r"\.")):
        keys_of({"k": values}, asked="k")


def test_an_absent_key_column_is_an_error() -> None:
    with pytest.raises(ManifestError, match="'k' is not a column; there are: a, b"):
        keys_of({"a": [1], "b": [2]}, asked="k")


def test_an_id_is_taken_when_unique() -> None:
    assert keys_of({"file": ["x", "y"], "Sample_ID": ["2", "1"]}, ("file",)) == (
        ["2", "1"],
        "key: column 'Sample_ID'",
    )
    assert keys_of({"file": ["x", "y"], "id": ["1", "1"]}, ("file",)) == (["x", "y"], "key: column 'file'")
    assert keys_of({"file": ["x", "y"], "id": ["1", None]}, ("file",))[0] == ["x", "y"]
    assert keys_of({"file": ["x", "y"], "uid": ["1", "1"], "id": [7, 8]}, ("file",))[0] == ["7", "8"]


def test_segments_of_one_file_have_their_start_in_the_key() -> None:
    keys, _ = keys_of({"file": ["x", "x", "x", "y"], "offset": [0.0, 1.5, 3.0, None]}, ("file",))
    assert keys == ["x", "x@1.5", "x@3", "y"]


def test_an_image_without_mask_and_a_mask_without_image_keep_the_others_keys() -> None:
    columns = {"image": ["i/1", "i/2", None], "mask": ["m/1", None, "m/3"]}
    assert keys_of(columns, ("image", "mask"))[0] == ["i/1", "i/2", "m/3"]


def test_paths_are_joined_where_the_first_is_not_unique() -> None:
    keys, told = keys_of({"a": ["x", "x"], "b": ["1", "2"]}, ("a", "b"))
    assert keys == ["x|1", "x|2"]
    assert told == "key: columns 'a' and 'b'"


def test_a_repeated_path_changes_no_other_key() -> None:
    keys, told = keys_of({"file": ["x", "y", "y", None, "z", "z"], "n": [1, 1, 2, 3, 4, 4]}, ("file",))
    assert "5 rows without a path of their own" in told
    assert keys[0] == "x"
    assert [key[:2] for key in keys[1:]] == ["y#", "y#", "#" + keys[3][1], "z#", "z#"]
    assert len(set(keys)) == 6
    assert keys_of({"file": ["y", "y"], "n": [2, 1]}, ("file",))[0] == [keys[2], keys[1]]


def test_numbers_never_meet_a_key_that_is_there() -> None:
    content = keys_of({"a": ["x", "x"]})[0]
    assert content[1] == f"{content[0]}-2"
    keys = keys_of({"file": ["x", "x", "x#-2"], "image": [None, None, "y"]}, ("file", "image"))[0]
    assert len(set(keys)) == 3


def test_content_is_the_last_resort_and_repeats_are_numbered() -> None:
    columns = {"a": ["x", "y", "x", "x"], "b": [1, 2, 1, 1]}
    keys, told = keys_of(columns)
    assert "hash" in told
    assert keys[2:] == [f"{keys[0]}-2", f"{keys[0]}-3"]
    assert len(set(keys)) == 4


def test_content_includes_lists(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1], [2], [1]]}), tmp_path / "a.parquet")
    lists = ListColumns.of_file(tmp_path / "a.parquet", ["x"], pq.read_metadata(tmp_path / "a.parquet"))
    keys = choose_keys(pa.table({}), (), None, lists)[0].to_pylist()
    assert keys[2] == f"{keys[0]}-2"
    assert keys[1] not in (keys[0], keys[2])


ROWS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from([None, 0.0, 1.0, 2.5])), min_size=1, unique=True
)


@given(rows=ROWS, extra=st.integers(0, 3))
def test_added_and_moved_rows_change_no_key(rows: list[tuple[str, float | None]], extra: int) -> None:
    rows = [
        row
        for row in rows
        if (row[0], row[1] or 0.0) not in {(a, b or 0.0) for a, b in rows[: rows.index(row)]}
    ]

    def keys(some: list[tuple[str, float | None]]) -> dict[tuple[str, float | None], str]:
        offset = pa.array([start for _, start in some], pa.float64())
        found = choose_keys(pa.table({"file": [f for f, _ in some], "offset": offset}), ("file",))[
            0
        ].to_pylist()
        assert len(set(found)) == len(some)
        return dict(zip(some, found, strict=True))

    part = rows[extra:] or rows
    assert keys(part).items() <= keys(rows[::-1]).items()


@given(texts=st.lists(st.sampled_from("abc"), min_size=1), more=st.lists(st.sampled_from("abcd")))
def test_content_keys_are_stable_when_rows_are_appended(texts: list[str], more: list[str]) -> None:
    few, many = (choose_keys(pa.table({"a": some}))[0].to_pylist() for some in (texts, texts + more))
    assert many[: len(few)] == few
    assert len(set(many)) == len(many)


@given(keys=st.lists(st.text(st.characters(codec="utf-8"))))
def test_hashes_are_the_first_eight_bytes_of_blake3(keys: list[str]) -> None:
    found = key_hashes(keys)
    assert found.dtype == np.uint64
    assert found.tolist() == [int.from_bytes(blake3(key.encode()).digest(8), "little") for key in keys]
    assert found.tolist() == [hash_key(key) for key in keys]
    assert found.tolist() == key_hashes(pa.array(keys, pa.large_string())).tolist()


def test_hashes_of_more_keys_than_a_block() -> None:
    keys = [str(i) for i in range(70_000)]
    found = key_hashes(pa.chunked_array([keys[:40_000], keys[40_000:]]))
    assert len(np.unique(found)) == 70_000
    assert found[-1] == hash_key("69999")
