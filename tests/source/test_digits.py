"""A note where float32 loses digits that a reader would miss, and none where it does not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.config.fields import LabelField, ScalarField
from flatout.source.digits import digit_notes


def notes(values: Any, section: Any = ScalarField()) -> dict[str, str]:  # noqa: B008
    return digit_notes({"x": section}, pa.table({"x": values}))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (pa.array([0.5, 1700000000.5]), r"1700000000.5 is stored as 1700000000; set fields.x.dtype: float64"),
        (pa.array([2460000.123, None]), r"2460000.123 is stored as 2460000; set fields.x.dtype: float64"),
        (pa.array([1e300]), r"1e\+300 is stored as inf"),
        (pa.array([3, 2**24 + 1]), r"16777217 is stored as 16777216; set fields.x.dtype: int64"),
        (pa.array([-(2**63) + 1]), r"-9223372036854775807 .*dtype: int64"),
        (pa.array([2**64 - 1], pa.uint64()), r"18446744073709551615 .*dtype: uint64"),
    ],
)
def test_lost_digits_are_told(values: pa.Array, said: str) -> None:
    assert re.search(said, notes(values)["x"])


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0.1, 1 / 3, -99999.99, float("nan")]),
        pa.array([2.0**60, 1e6]),
        pa.array([2**24, -(2**24), 2**60, -(2**63), 0]),
        pa.array([float("inf"), 1.0]),
        pa.array([None, None], pa.float64()),
        pa.array([], pa.int64()),
        pa.array(["1700000000.5"]),
        pa.array([1700000000.5], pa.float32()),
    ],
)
def test_what_float32_holds_is_not_mentioned(values: pa.Array) -> None:
    assert notes(values) == {}


def test_a_dtype_or_another_kind_is_the_users_word() -> None:
    values = pa.array([1700000000.5])
    assert notes(values, ScalarField(dtype="float32")) == notes(values, LabelField()) == {}
    assert notes(values, ScalarField(column="y")) == {}


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_are_told_exactly_where_float32_changes_them(number: int) -> None:
    is_lost = abs(number) > 2**18 and int(np.float32(number)) != number
    assert bool(notes(pa.array([number]))) is is_lost
