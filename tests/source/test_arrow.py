"""Arrow columns in one piece, as text, joined."""

from __future__ import annotations

import pyarrow as pa

from flatout.source.arrow import as_text, join_text, one_piece


def test_one_piece_of_any_number_of_chunks() -> None:
    for chunks in ([], [["a"]], [["a"], [], ["b"]]):
        column = pa.chunked_array(chunks, pa.large_string())
        assert one_piece(column).to_pylist() == column.to_pylist()
    assert one_piece(pa.array([1])).to_pylist() == [1]


def test_anything_becomes_text_and_null_stays_null() -> None:
    assert as_text(pa.chunked_array([[1], [None]])).to_pylist() == ["1", None]
    assert as_text(pa.array([1.5, None])).to_pylist() == ["1.5", None]
    assert as_text(pa.array([[1], None])).to_pylist() == ["[1]", None]
    assert as_text(pa.array(["a"])).type == pa.large_string()


def test_texts_are_joined_row_by_row() -> None:
    column = pa.array(["a", None], pa.large_string())
    assert join_text("x", column, by="/").to_pylist() == ["x/a", None]
    assert join_text(column, column, by="|", missing="").to_pylist() == ["a|a", "|"]
