"""Classes that may be typos: found among real names, and not made up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.config import load_config
from flatout.source import doubtful_classes, manifest_of_range
from flatout.source.doubts import MAX_RARE, _distance, likely_typos


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("elehpant", "elephant"),  # swapped
        ("elephnt", "elephant"),
        ("elepphant", "elephant"),
        ("elaphont", "elephant"),
        ("Horse", "horse"),
        ("horsee", "horse"),
        ("n", "N"),
        ("aortic stenosis ii", "aortic stenosis i"),
        ("Malignat", "malignant"),
    ],
)
def test_slips_are_found(slip: str, meant: str) -> None:
    assert likely_typos({meant: 20, slip: 1, "other": 7}) == [(slip, 1, meant, 20)]
    assert likely_typos({meant: 4, slip: 1}) == []  # not frequent
    assert likely_typos({meant: 20, slip: 3}) == []  # not rare
    assert likely_typos({meant: 9, slip: 2}) == []


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("cat", "car"),  # too short to tell
        ("AS", "MS"),
        ("left", "right"),
        ("normal", "abnormal"),
        ("grade 1", "grade 2"),
        ("T10", "T1"),
        ("male", "female"),
        ("horse", "zebra"),
    ],
)
def test_names_of_their_own_are_not(name: str, other: str) -> None:
    assert likely_typos({name: 1, other: 500}) == []


def test_the_most_frequent_is_meant() -> None:
    assert likely_typos({"horsy": 1, "horse": 30, "horst": 10}) == [("horsy", 1, "horse", 30)]


def test_many_rare_classes_are_no_slips() -> None:
    rare = {f"horse{chr(97 + n // 26)}{chr(97 + n % 26)}": 1 for n in range(MAX_RARE + 1)}
    assert likely_typos({**rare, "horseaaa": 1000}) == []


def plain_distance(a: str, b: str) -> int:
    """The definition, without swaps."""
    if not a or not b:
        return len(a) + len(b)
    return min(
        plain_distance(a[1:], b) + 1,
        plain_distance(a, b[1:]) + 1,
        plain_distance(a[1:], b[1:]) + (a[0] != b[0]),
    )


@given(st.text("abc", max_size=5), st.text("abc", max_size=5))
def test_the_distance_is_that_of_the_definition(a: str, b: str) -> None:
    found, plain = _distance(a, b), plain_distance(a, b)
    assert found == _distance(b, a)
    assert plain / 2 <= found <= plain  # a swap is two replacements
    swaps = {a[:i] + a[i + 1] + a[i] + a[i + 2 :] for i in range(len(a) - 1)} - {a}
    assert all(_distance(a, other) == 1 for other in swaps)


def notes_of(values: Any, **field: Any) -> list[str]:
    manifest = manifest_of_range(len(values))
    manifest.__dict__["table"] = pa.table({"y": values})
    config = load_config({"manifest": "m.csv", "fields": {"y": {"kind": "label", **field}}}, environ={})
    return doubtful_classes(config.fields, manifest)


def test_a_note_names_the_rows_and_the_way_out() -> None:
    (told,) = notes_of(pa.array([" horse"] * 30 + ["hrose", "hosre ", "hosre", None, ""]))
    assert "field 'y'" in told
    assert "'hosre' (2 rows) may be 'horse' (30 rows), 'hrose' (1 row) may be 'horse' (30 rows);" in told
    assert told.endswith("in fields.y.classes")


def test_nothing_is_said_of_numbers_and_of_classes_that_are_given() -> None:
    assert notes_of(pa.array(np.r_[np.full(50, 1000), 1001])) == []
    words = pa.array(["horse"] * 30 + ["hrose"])
    assert len(notes_of(words)) == 1
    assert notes_of(words, classes=["horse"]) == []
    assert notes_of(words, column="absent") == []
    many = [
        f"class {chr(97 + n // 26 // 26)}{chr(97 + n // 26 % 26)}{chr(97 + n % 26)}" for n in range(1001)
    ] * 3
    assert notes_of(pa.array([*words.to_pylist(), *many])) == []
    assert len(notes_of(pa.array([*words.to_pylist(), *sorted(many)[: 3 * 900]]))) == 1
