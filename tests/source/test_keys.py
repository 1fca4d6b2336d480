"""Keys: where they come from, that they are unique, and that other rows never change them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3
from hypothesis import event, given, settings
from hypothesis import strategies as st

from flatout.errors import ManifestError
from flatout.source.files import file_state
from flatout.source.identity import hash_key
from flatout.source.key_rule import KeyRule
from flatout.source.keys import choose_keys, key_hashes
from flatout.source.lists import ListColumns


def keys_of(
    columns: dict[str, object],
    paths: tuple[str, ...] = (),
    asked: str | None = None,
    rule: str | None = None,
) -> tuple[list[str], str]:
    keys, found = choose_keys(pa.table(columns), paths, asked, key_rule=rule)
    return keys.to_pylist(), str(found)


def test_the_column_asked_for_wins() -> None:
    keys, rule = keys_of({"id": ["a", "b"], "n": [10, 20]}, asked="n", rule="column:id")
    assert keys == ["10", "20"]
    assert rule == "column:n"


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


@given(
    st.lists(st.sampled_from(["", "a", "B", "b", "bb", "é", "\U0001f600"]) | st.none(), max_size=5),
    st.booleans(),
)
def test_a_key_column_is_taken_only_if_each_key_is_there_once(values: list[str | None], in_order: bool) -> None:
    values = sorted(values, key=lambda value: value or "") if in_order else values
    is_good = all(values) and len(set(values)) == len(values)
    column = pa.array(values, pa.string())
    event(f"good: {is_good}")
    if is_good:
        assert choose_keys(pa.table({"k": column}), (), "k")[0].to_pylist() == values
    else:
        with pytest.raises(ManifestError, match=r"is empty in row|are all"):
            choose_keys(pa.table({"k": column}), (), "k")


def test_an_id_is_taken_when_unique() -> None:
    assert keys_of({"file": ["x", "y"], "Sample_ID": ["2", "1"]}, ("file",)) == (
        ["2", "1"],
        "column:Sample_ID",
    )
    assert keys_of({"file": ["x", "y"], "id": ["1", "1"]}, ("file",)) == (["x", "y"], "paths:file")
    assert keys_of({"file": ["x", "y"], "id": ["1", None]}, ("file",))[0] == ["x", "y"]
    assert keys_of({"file": ["x", "y"], "uid": ["1", "1"], "id": [7, 8]}, ("file",))[0] == ["7", "8"]


def test_segments_of_one_file_have_their_start_in_the_key() -> None:
    keys, _ = keys_of({"file": ["x", "x", "x", "y"], "offset": [0.0, 1.5, 3.0, None]}, ("file",))
    assert keys == ["x", "x@1.5", "x@3", "y"]


def test_a_start_that_is_a_text_is_in_the_key_as_its_number() -> None:
    odd = {"file": ["x", "x", "x", "y"], "offset": ["0.0", "1.50", "later", None]}
    keys, rule = keys_of(odd, ("file",))
    assert keys == ["x", "x@1.5", "x@later", "y"]
    assert rule == "paths:file@offset"
    assert keys_of({**odd, "offset": ["left", "right", "mid", None]}, ("file",))[1] != rule


def test_all_paths_are_joined() -> None:
    keys, rule = keys_of({"a": ["x", "x", None], "b": ["1", None, "3"]}, ("a", "b"))
    assert keys == ["x|1", "x|", "|3"]
    assert rule == "paths:a,b"


def test_where_a_path_repeats_every_key_has_its_content() -> None:
    columns = {"file": ["x", "y", "y", None, "z", "z"], "n": [1, 1, 2, 3, 4, 4]}
    keys, rule = keys_of(columns, ("file",))
    assert rule == "paths+content:file|n"
    assert [key.split("#")[0] for key in keys] == ["x", "y", "y", "", "z", "z"]
    assert len(set(keys)) == 6
    assert keys[5] == f"{keys[4]}-2"
    assert keys_of({"file": ["y", "x"], "n": [2, 1]}, ("file",), rule=rule)[0] == [keys[2], keys[0]]


def test_content_is_the_last_resort_and_repeats_are_numbered() -> None:
    columns = {"a": ["x", "y", "x", "x"], "b": [1, 2, 1, 1]}
    keys, rule = keys_of(columns)
    assert rule == "content:a,b"
    assert keys[2:] == [f"{keys[0]}-2", f"{keys[0]}-3"]
    assert len(set(keys)) == 4


def test_content_includes_lists(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1], [2], [1]]}), tmp_path / "a.parquet")
    lists = ListColumns.of_file(
        tmp_path / "a.parquet",
        ["x"],
        pq.read_metadata(tmp_path / "a.parquet"),
        file_state(tmp_path / "a.parquet"),
    )
    keys = choose_keys(pa.table({}), (), None, lists)[0].to_pylist()
    assert keys[2] == f"{keys[0]}-2"
    assert keys[1] not in (keys[0], keys[2])


NAMES = st.text("ab,|@%:", min_size=1, max_size=4)
RULES = st.one_of(
    st.builds(KeyRule, column=NAMES),
    st.builds(KeyRule, content=st.lists(NAMES).map(tuple)),
    st.builds(
        KeyRule,
        paths=st.lists(NAMES, min_size=1).map(tuple),
        has_offset=st.booleans(),
        content=st.none() | st.lists(NAMES).map(tuple),
    ),
)


@given(rule=RULES)
def test_a_rule_survives_as_text(rule: KeyRule) -> None:
    assert KeyRule.parse(str(rule)) == rule


@pytest.mark.parametrize("text", ["", "id", "column:", "paths:", "paths:a|b", "paths+content:|a", "rows:a"])
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(ManifestError, match="a rule is column:NAME"):
        keys_of({"a": ["x"]}, rule=text)


@pytest.mark.parametrize(
    ("rule", "columns", "message"),
    [
        ("column:name", {"name": ["a", "b", "a"]}, "'name' is not unique: rows 1, 3 are all 'a'"),
        ("column:name", {"name": ["a", None, ""]}, "is empty in rows 2, 3"),
        ("column:name", {"id": ["a"]}, "column 'name' is gone; there are: id"),
        (
            "paths:f,g",
            {"f": ["x", "x"], "g": ["1", "1"]},
            r"'f' and 'g' is not unique: rows 1, 2 are all 'x\|1'",
        ),
        ("paths:f", {"f": ["x", None]}, "is empty in row 2"),
        ("paths:f@offset", {"f": ["x"]}, "column 'offset' is gone"),
        ("content:n", {"n": [1, 2, 1], "m": [1, 2, 3]}, "rows 1, 3 are alike in its columns"),
        ("paths+content:f|n", {"f": ["x"]}, "column 'n' is gone"),
    ],
)
def test_rows_that_a_rule_does_not_fit_are_named(rule: str, columns: dict[str, object], message: str) -> None:
    with pytest.raises(ManifestError, match=f"{message}.*set key_column, or use --force"):
        keys_of(columns, ("f",), rule=rule)


def test_columns_found_later_do_not_count() -> None:
    first, rule = keys_of({"n": [1, 2]})
    assert keys_of({"id": ["a", "b"], "n": [1, 2], "offset": [1, 2]}, rule=rule)[0] == first
    first, rule = keys_of({"f": ["x", "y"]}, ("f",))
    later = {"id": ["a", "b"], "f": ["x", "y"], "g": ["1", "2"], "offset": [1.5, 2.0]}
    assert keys_of(later, ("g", "f"), rule=rule)[0] == first


def test_a_word_among_numbers_changes_no_content() -> None:
    first, rule = keys_of({"n": [1.0, 2.5, None, 3e20, 1e-7]})
    texts = ["1.0", " 2.50", "NA", "3e20", "1E-7", "l2"]
    assert keys_of({"n": texts}, rule=rule)[0][:5] == first
    first, rule = keys_of({"f": ["x", "x"], "offset": [0.0, 1.5]}, ("f",))
    assert first == ["x", "x@1.5"]
    assert keys_of({"f": ["x", "x", "x"], "offset": ["0.0", "1.50", "l"]}, rule=rule)[0] == [*first, "x@l"]


Row = tuple[str | None, str | None, str | None, float | None, int]
ROWS: st.SearchStrategy[list[Row]] = st.lists(
    st.tuples(
        st.sampled_from([*"abcdefgh", None]),
        st.sampled_from([*"klmnopqrstwxyz", None]),
        st.sampled_from([*"uvw", None]),
        st.sampled_from([None, 0.0, 1.0, 2.5]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=8,
)
CHOICES = st.sampled_from(
    [
        (("id", "f", "g", "offset", "n"), ("f", "g")),
        (("f", "g", "n"), ("f", "g")),
        (("f", "offset"), ("f",)),
        (("f", "n"), ("f",)),
        (("offset", "n"), ()),
    ]
)


def table_of(rows: list[Row], names: tuple[str, ...]) -> pa.Table:
    texts = pa.large_string()
    schema = {"id": texts, "f": texts, "g": texts, "offset": pa.float64(), "n": pa.int64()}
    columns = zip(schema, zip(*rows, strict=True), strict=True)
    return pa.table({name: pa.array(values, schema[name]) for name, values in columns}).select(list(names))


def followed(table: pa.Table, paths: tuple[str, ...], rule: str) -> pa.Array | ManifestError:
    try:
        return choose_keys(table, paths, key_rule=rule)[0]
    except ManifestError as error:
        return error


@settings(max_examples=200)
@given(rows=ROWS, more=ROWS, choice=CHOICES, extra=st.booleans(), word=st.booleans(), data=st.data())
def test_whatever_is_added_moved_or_deleted_no_key_changes(
    rows: list[Row],
    more: list[Row],
    choice: tuple[tuple[str, ...], tuple[str, ...]],
    extra: bool,
    word: bool,
    data: st.DataObject,
) -> None:
    names, paths = choice
    first, rule = choose_keys(table_of(rows, names), paths)
    assert len(set(first.to_pylist())) == len(rows)
    # Each old row has a mark that the rule does not know; among equal ones only the set of keys counts.
    later = data.draw(st.permutations([*enumerate(rows), *((-1, row) for row in more)]))
    later = later[: data.draw(st.integers(1, len(later)))]
    table = table_of([row for _, row in later], names)
    if extra:
        table = table.append_column("uid", pa.array([str(at) for at in range(len(later))]))
    if word and "n" in names:
        texts = ["l2" if old < 0 else str(row[4]) for old, row in later]
        table = table.set_column(table.column_names.index("n"), "n", pa.array(texts, pa.large_string()))
    second = followed(table, (*paths[::-1], "uid"), str(rule))
    if isinstance(second, ManifestError):
        event("refused")
        assert re.search(r"rows? \d", str(second))
        return
    event(f"kept by {str(rule).partition(':')[0]}")
    found = second.to_pylist()
    assert len(set(found)) == len(later)
    base = [key if rule.content is None else re.sub(r"-\d+$", "", key) for key in first.to_pylist()]
    for (old, _), key in zip(later, found, strict=True):
        if old >= 0:
            assert (key if rule.content is None else re.sub(r"-\d+$", "", key)) == base[old]
            assert base.count(base[old]) > 1 or base[old] in found


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
