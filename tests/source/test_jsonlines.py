"""JSON lines: missing keys, mixed and nested values, and errors with their line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import ManifestError
from flatout.source import jsonlines
from flatout.source.jsonlines import read_json_lines


def write(folder: Path, *lines: str | bytes) -> Path:
    path = folder / "m.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines) + b"\n")
    return path


def test_missing_keys_are_null_and_blank_lines_nothing(tmp_path: Path) -> None:
    table, _, notes = read_json_lines(
        write(tmp_path, '\ufeff{"a": 1}', "", '{"b": "x", "a": null}', '{"c": 2.5}')
    )
    assert table.to_pydict() == {"a": [1, None, None], "b": [None, "x", None], "c": [None, None, 2.5]}
    assert notes == ()


def test_texts_that_look_like_something_stay_texts(tmp_path: Path) -> None:
    table, *_ = read_json_lines(write(tmp_path, '{"d": "2020-01-01", "n": "007", "t": "true"}'))
    assert table.to_pydict() == {"d": ["2020-01-01"], "n": ["007"], "t": ["true"]}


@pytest.mark.parametrize("block_rows", [1, 2, 100])
def test_mixed_and_nested_values_become_text_whatever_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_rows: int
) -> None:
    monkeypatch.setattr(jsonlines, "BLOCK_ROWS", block_rows)
    rows = [
        {"label": 1, "tags": [1, 2], "number": 1, "late": None, "big": 2**60},
        {"label": "one", "tags": {"b": 1, "a": "ü"}, "number": 1.5, "late": None, "big": 0.5},
        {"label": True, "tags": None, "number": None, "late": "x", "big": None},
        {"label": 1.0, "late": "y", "new": 2**70},
    ]
    table, _, notes = read_json_lines(write(tmp_path, *map(json.dumps, rows)))
    assert table.to_pydict() == {
        "label": ["1", "one", "true", "1.0"],
        "tags": ["[1, 2]", '{"a": "ü", "b": 1}', None, None],
        "number": [1.0, 1.5, None, None],
        "late": [None, None, "x", "y"],
        "big": [str(2**60), "0.5", None, None],
        "new": [None, None, None, str(2**70)],
    }
    assert [note.split("'")[1] for note in notes] == ["big", "label", "new", "tags"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (('{"a": 1}', '{"a": 1'), "line 2: not JSON"),
        (('{"a": 1}', "", "nonsense"), "line 3: not JSON"),
        (("[", '{"a": 1}', "]"), "line 1: one JSON object a line is wanted, not one document"),
        (('[{"a": 1}]',), "line 1: one JSON object a line is wanted, not"),
        (("{", '"a": 1', "}"), "line 1: one JSON object a line is wanted, not"),
        (('{"a": 1}', "3"), "line 2: one JSON object"),
        (('{"a": 1}', b'{"a": "\xff"}'), "line 2: not UTF-8"),
        (("[" * 100_000,), "line 1"),
        (('{"a": "\\ud800"}',), "half a character"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, lines: tuple[str | bytes, ...], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        read_json_lines(write(tmp_path, *lines))


def test_an_empty_file_has_no_columns(tmp_path: Path) -> None:
    table, *_ = read_json_lines(write(tmp_path, ""))
    assert table.num_rows == table.num_columns == 0


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(codec="utf-8"), max_size=5)
)


@given(rows=st.lists(st.dictionaries(st.sampled_from("abc"), VALUES), min_size=1, max_size=12))
def test_a_column_of_one_type_comes_back_as_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]
) -> None:
    path = write(tmp_path_factory.mktemp("json"), *map(json.dumps, rows))
    table: pa.Table = read_json_lines(path)[0]
    for name in table.column_names:
        values = [row.get(name) for row in rows]
        if len({type(value) for value in values if value is not None}) <= 1:
            assert table[name].to_pylist() == values
