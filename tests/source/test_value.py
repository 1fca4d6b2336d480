"""Manifest cells as labels, numbers and texts, with everything a CSV or Parquet may put there."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.config.fields import LabelField, ScalarField, TextField
from flatout.errors import ConfigError, SampleError
from flatout.source.value import collect_classes, make_value

MISSING = [None, float("nan"), np.float32("nan"), "", "  "]


@pytest.mark.parametrize("value", [3, 3.0, "3", " 3 ", np.int32(3), np.float32(3)])
def test_label_of_a_number(value):
    found = make_value("y", LabelField())(value)
    assert found == 3
    assert found.dtype == np.int64
    assert found.shape == ()


def test_label_of_a_bool_and_of_a_negative_number():
    convert = make_value("y", LabelField())
    assert [int(convert(value)) for value in (True, False, np.bool_(True), -1, "-1")] == [1, 0, 1, -1, -1]


@pytest.mark.parametrize("value", [0.5, "a", "1.5", "", None, 2**70, "9" * 30, float("inf"), [1], "²"])
def test_label_that_is_no_class_number(value):
    with pytest.raises(SampleError):
        make_value("y", LabelField())(value)


def test_label_by_name_or_position():
    convert = make_value("y", LabelField(classes=["normal", "murmur"]))
    assert [int(convert(value)) for value in ("murmur", " normal", 0, 1, "1", 1.0)] == [1, 0, 0, 1, 1, 1]
    with pytest.raises(SampleError, match=r"unknown class 'AS' \(known: normal, murmur\)"):
        convert("AS")
    with pytest.raises(SampleError, match="unknown class '2'"):
        convert(2)


def test_names_that_are_numbers_are_names():
    convert = make_value("y", LabelField(classes=["10", "20", "0"]))
    assert [int(convert(value)) for value in (10, "20", 20.0, 0)] == [0, 1, 1, 2]
    with pytest.raises(SampleError, match="unknown class '1'"):
        convert(1)


@pytest.mark.parametrize("value", MISSING)
def test_missing_cells(value):
    with pytest.raises(SampleError, match="field 'y': missing label"):
        make_value("y", LabelField(classes=["a"]))(value)


def test_unknown_class_among_very_many_stays_a_short_message():
    convert = make_value("y", LabelField(classes=[f"class{i}" for i in range(5000)]))
    with pytest.raises(SampleError) as caught:
        convert("other")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("values", "known", "expected"),
    [
        ([2, 0, 1], None, None),
        (["0", 1.0, True, None], None, None),
        ([], None, None),
        (["b", "a", "b", None, float("nan"), ""], None, ["a", "b"]),
        (["b", "a"], ["c", "b"], ["c", "b", "a"]),
        ([0, 1], ["normal", "murmur"], ["normal", "murmur"]),
        ([0, 2], ["2"], ["2", "0"]),
        ([1, "a"], None, None),
        ([1, "a", "b"], None, ["1", "a", "b"]),
        ([*map(str, range(1, 13)), "l2"], None, None),
        (["1.0", "2.0", "l2"], None, None),
        (["001", "002", "01"], None, ["001", "002", "01"]),
        (["007", "7", "a"], None, ["007", "7", "a"]),
        ([1, 1, 1, "a", "b", " b"], None, ["1", "a", "b"]),
        ([], ["a"], ["a"]),
        ([1, "a", "b"], [], None),
        ([0, 1, "cta"], ["cat", "dog"], ["cat", "dog"]),
        (["cat", 1], ["cat", "dog"], ["cat", "dog", "1"]),
        (["1.0", "2"], ["1.0"], ["1.0", "2"]),
    ],
)
def test_collected_classes(values, known, expected):
    assert collect_classes(values, known) == expected


CELLS = st.lists(
    st.one_of(st.none(), st.integers(-5, 20), st.text("01.ab ", max_size=3), st.booleans(), st.just(2.0))
)


@given(CELLS, st.randoms())
def test_every_present_cell_has_a_class_whatever_the_order(values, random):
    classes = collect_classes(values, None)
    shuffled = list(values)
    random.shuffle(shuffled)
    assert collect_classes(shuffled, None) == classes
    assert collect_classes(values, [] if classes is None else classes) == classes
    convert = make_value("y", LabelField(classes=classes))
    for value in values:
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        assert classes is None or 0 <= convert(value) < len(classes)


@given(CELLS, st.none() | st.lists(st.sampled_from(["a", "b", "7", "007", "1.0"]), unique=True, min_size=1))
def test_known_classes_stay_first(values, known):
    found = collect_classes(values, known)
    assert known is None or found[: len(known)] == known
    assert found is None or len(set(found)) == len(found)


def test_a_typo_among_integers_is_one_bad_cell():
    cells = [*map(str, range(1, 13)), "l2"]
    convert = make_value("y", LabelField(classes=collect_classes(cells, None)))
    assert [int(convert(cell)) for cell in cells[:-1]] == list(range(1, 13))
    with pytest.raises(SampleError, match=r"'l2' is no class number.*set classes to use names"):
        convert("l2")


def test_leading_zeros_make_a_name():
    convert = make_value("y", LabelField(classes=["007", "7"]))
    assert [int(convert(cell)) for cell in ("007", "7", 7)] == [0, 1, 1]
    with pytest.raises(SampleError, match="'007' is no class number"):
        make_value("y", LabelField())("007")
    with pytest.raises(SampleError, match="unknown class '1'"):
        make_value("y", LabelField(classes=["01", "02"]))(1)


def test_later_classes_never_move_earlier_ones():
    first = collect_classes(["m", "k"], None)
    assert first is not None
    second = collect_classes(["a", "m", "k", "z"], first)
    assert second == ["k", "m", "a", "z"]


@pytest.mark.parametrize("value", [1.5, "1.5", " 1.5", np.float64(1.5)])
def test_scalar(value):
    found = make_value("age", ScalarField())(value)
    assert found.dtype == np.float32
    assert found.shape == ()
    assert found == 1.5


def test_scalar_of_other_dtypes():
    assert make_value("n", ScalarField(dtype="int64"))(2**53 + 1) == 2**53 + 1
    assert make_value("n", ScalarField(dtype="float64"))("0.1") == 0.1
    with pytest.raises(SampleError, match="do not fit uint8"):
        make_value("n", ScalarField(dtype="uint8"))(256)
    with pytest.raises(SampleError, match=r"fractions \(0\.25 is one\), dtype int64"):
        make_value("n", ScalarField(dtype="int64"))(0.25)


@pytest.mark.parametrize("number", [2**64 - 1, 2**63 + 1, 2**63 - 1])
def test_the_widest_integers_keep_their_digits(number):
    assert make_value("n", ScalarField(dtype="uint64"))(number) == number


@pytest.mark.parametrize(("cell", "hint"), [("0,5", True), (" -1,25e3 ", True), ("a,b", False), ("x", False)])
def test_a_decimal_comma_is_called_so(cell, hint):
    with pytest.raises(SampleError, match="is no number") as found:
        make_value("n", ScalarField())(cell)
    assert ("decimal comma" in str(found.value)) is hint
    with pytest.raises(ConfigError):
        make_value("n", ScalarField(dtype="text"))


@pytest.mark.parametrize("value", [None, "", " ", "x", [1], {}, 1j, 10**400])
def test_scalar_that_is_no_number(value):
    with pytest.raises(SampleError, match="field 'age'"):
        make_value("age", ScalarField())(value)


def test_nan_is_left_to_the_finite_check():
    assert math.isnan(make_value("age", ScalarField())(float("nan")))


@given(st.text())
def test_text_is_its_bytes(text):
    found = make_value("t", TextField())(text)
    assert found.dtype == np.uint8
    assert found.tobytes().decode() == text


@pytest.mark.parametrize("value", [None, float("nan"), "\ud800", b"\xff", ["a"], {}])
def test_what_is_no_text(value):
    with pytest.raises(SampleError, match="field 't'"):
        make_value("t", TextField())(value)


def test_converters_travel_to_workers():
    for field, value in ((LabelField(classes=["a"]), "a"), (ScalarField(), 0), (TextField(), "\0")):
        assert pickle.loads(pickle.dumps(make_value("y", field)))(value) == 0


def test_numbers_as_text():
    assert make_value("t", TextField())(12).tobytes() == b"12"
