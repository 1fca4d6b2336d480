"""Parameters become strict JSON, and their differences become words."""

from __future__ import annotations

import datetime
import json
from enum import Enum
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.store.parameters import changes_between, to_json_value

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text("ab", max_size=3)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("ab", max_size=2) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=8,
)
law = settings(deadline=None)


class Mode(Enum):
    FAST = "fast"


@law
@given(VALUES)
def test_values_survive_strict_json(value: object) -> None:
    found = to_json_value(value)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert to_json_value(found) == found
    assert list(changes_between(found, to_json_value(value))) == []


@law
@given(VALUES, VALUES)
def test_a_difference_is_named_exactly_when_there_is_one(one: object, other: object) -> None:
    old, new = to_json_value({"p": one}), to_json_value({"p": other})
    same = json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)
    lines = list(changes_between(old, new))
    empty_against_missing = not same and not lines
    assert not empty_against_missing
    assert same == (not lines)


def test_other_types_become_json() -> None:
    value = {
        "m": Mode.FAST,
        "p": Path("a/b"),
        "s": {3, 1, 2},
        "n": np.float32(0.5),
        "i": np.int64(3),
        1: np.True_,
    }
    wanted = {"m": "fast", "p": "a/b", "s": [1, 2, 3], "n": 0.5, "i": 3, "1": True}
    assert to_json_value(value) == wanted


def test_values_without_a_word_in_json_count_by_content() -> None:
    day = datetime.date(2020, 1, 2)
    assert to_json_value(day) == to_json_value(datetime.date(2020, 1, 2))
    assert to_json_value(day) != to_json_value(datetime.date(2020, 1, 3))
    assert to_json_value(np.arange(3)).startswith("ndarray ")
    assert to_json_value(np.arange(3)) != to_json_value(np.arange(1, 4))


def test_long_values_are_shortened() -> None:
    (line,) = changes_between({"a": list(range(100))}, {"a": 1})
    assert line.startswith("a changed from [0,1,2,3")
    assert line.endswith("... to 1")
    assert len(line) < 100
