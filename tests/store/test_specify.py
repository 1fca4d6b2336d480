"""Field specifications from the first samples, and the check of every later one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flatout.config.fields import FieldSection, LabelField
from flatout.errors import ConfigError, PrepareError, SampleError
from flatout.source.convert import to_array
from flatout.store.specify import ArrayForm, check_array, specify
from flatout.types import FieldSpec


def spec_from(
    shapes: list[tuple[int, ...]],
    kind: str = "array",
    dtypes: list[str] | None = None,
    section: FieldSection | None = None,
) -> FieldSpec:
    dtypes = dtypes or ["<f4"] * len(shapes)
    forms = [[{"x": ArrayForm(dtype, shape)}] for dtype, shape in zip(dtypes, shapes, strict=True)]
    (spec,) = specify({"x": section or FieldSection()}, {"x": kind}, forms)
    return spec


def test_equal_shapes_are_fixed_and_others_ragged() -> None:
    assert spec_from([(3, 4), (3, 4)]).shape == (3, 4)
    assert spec_from([(3, 4), (3, 5)]).shape == (None, None)
    assert spec_from([(), ()]).shape == ()


@pytest.mark.parametrize(
    ("kind", "shape", "expected"),
    [
        ("sequence", (5, 2), (None, 2)),
        ("text", (5,), (None,)),
        ("signal", (1, 5), (1, None)),
        ("image", (3, 5, 6), (3, None, None)),
        ("mask", (1, 5, 6), (1, None, None)),
        ("volume", (1, 5, 6, 7), (1, None, None, None)),
        ("array", (5, 6), (None, None)),
    ],
)
def test_which_axes_vary_follows_from_the_kind(kind: str, shape: Any, expected: Any) -> None:
    assert spec_from([shape], kind, section=FieldSection(ragged=True)).shape == expected
    always = kind in ("sequence", "text")
    assert spec_from([shape], kind).shape == (expected if always else shape)
    assert spec_from([shape], kind, section=FieldSection(ragged=False)).shape == shape


def test_the_dtype_holds_all_that_were_seen_or_is_the_one_asked_for() -> None:
    assert spec_from([(2,), (2,)], dtypes=["<i4", "<f4"]).dtype == "float64"
    assert spec_from([(2,)], dtypes=[">i4"]).dtype == "int32"
    assert spec_from([(2,)], dtypes=["<f8"], section=FieldSection(dtype="float32")).dtype == "float32"


def test_encoding_compression_range_and_classes_come_from_the_settings() -> None:
    section = FieldSection(encoding="uint8", compression="zstd", range=(0.0, 1.0))
    spec = spec_from([(2,)], section=section)
    assert (spec.encoding, spec.compression, spec.range) == ("uint8", "zstd", (0.0, 1.0))
    label = spec_from([()], "label", ["<i8"], LabelField(classes=["a", "b"], compression="gzip"))
    assert label.classes == ("a", "b")
    assert label.compression == "none"  # a number has nothing to compress


def test_strings_are_text_whatever_the_kind() -> None:
    forms = [[{"x": ArrayForm("|u1", (4,), is_text=True)}]]
    (spec,) = specify({}, {}, forms)
    assert (spec.kind, spec.shape) == ("text", (None,))


@pytest.mark.parametrize("dtype", ["|u1", "<f4"])
def test_text_is_no_array_of_its_letters(dtype: str) -> None:
    text = to_array("x", "four")
    with pytest.raises(SampleError, match=r"field 'x' is text, wanted (uint8|float32)"):
        check_array(spec_from([(4,)], dtypes=[dtype]), text, False)
    (spec,) = specify({}, {}, [[{"x": ArrayForm.of(text)}]])
    assert check_array(spec, text, False).tobytes() == b"four"


def test_fields_are_those_of_the_first_sample() -> None:
    first = {"b": ArrayForm("<f4", (1,)), "a": ArrayForm("<f4", (1,))}
    more = {**first, "c": ArrayForm("<f4", (1,))}
    assert [spec.name for spec in specify({}, {}, [[first], [more]])] == ["b", "a"]


def test_what_cannot_be_stored() -> None:
    with pytest.raises(PrepareError, match="none of the first rows"):
        specify({}, {}, [])
    with pytest.raises(ConfigError, match="axes"):
        spec_from([(2,), (2, 2)])
    with pytest.raises(ConfigError, match="encoding uint8 is for floating point"):
        spec_from([(2,)], dtypes=["<i8"], section=FieldSection(encoding="uint8"))
    with pytest.raises(ConfigError, match="field 'x'"):
        spec_from([(2,)], section=FieldSection(dtype="no such thing"))
    with pytest.raises(ConfigError, match="cannot hold"):
        spec_from([(2,)], section=FieldSection(dtype="datetime64[s]"))
    with pytest.raises(ConfigError, match="field name 'a/b'"):
        specify({}, {}, [[{"a/b": ArrayForm("<f4", (1,))}]])


def spec_of(dtype: str = "float32", shape: Any = (2, None)) -> FieldSpec:
    return FieldSpec("x", "array", dtype, shape)


def test_a_good_array_passes_as_it_is() -> None:
    array = np.zeros((2, 5), np.float32)
    assert check_array(spec_of(), array, False) is array


@pytest.mark.parametrize("shape", [(2,), (3, 5), (2, 5, 1), ()])
def test_another_shape_is_told(shape: tuple[int, ...]) -> None:
    with pytest.raises(SampleError, match=r"wanted \(2, any\); all samples must agree on that") as caught:
        check_array(spec_of(), np.zeros(shape, np.float32), False)
    assert caught.value.stage == "check"


def test_how_shapes_may_differ_is_told_where_they_may() -> None:
    fixed = spec_of(shape=(2, 4))
    with pytest.raises(SampleError, match=r"wanted \(2, 4\); set its size or length, or 'ragged: true'"):
        check_array(fixed, np.zeros((2, 5), np.float32), False)
    with pytest.raises(SampleError, match=r"wanted \(2, 4\); all samples must agree"):
        check_array(fixed, np.zeros((2, 4, 1), np.float32), False)


def test_not_finite_is_told_with_its_number_unless_allowed() -> None:
    array = np.array([[1, np.nan], [np.inf, 2]], np.float32)
    with pytest.raises(SampleError, match="2 NaN or infinite values"):
        check_array(spec_of(), array, False)
    assert check_array(spec_of(), array, True) is array
    with pytest.raises(SampleError, match="1 NaN or infinite"):
        check_array(spec_of("complex64", (1,)), np.array([complex(0, np.inf)], np.complex64), False)


@pytest.mark.parametrize(
    ("given", "wanted", "values"),
    [
        ("float64", "float32", [1.5]),
        ("int64", "float32", [1]),
        ("int64", "uint8", [0, 255]),
        ("uint8", "int64", [7]),
        ("bool", "uint8", [True]),
        ("float32", "complex64", [1.5]),
    ],
)
def test_casts_that_keep_the_values(given: str, wanted: str, values: list[Any]) -> None:
    found = check_array(spec_of(wanted, (None,)), np.array(values, given), False)
    assert found.dtype == wanted
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize(
    ("given", "wanted", "values"),
    [
        ("int64", "uint8", [256]),
        ("int64", "uint8", [-1]),
        ("uint64", "int64", [2**63]),
        ("float32", "int64", [1.0]),
        ("complex64", "float32", [1.0]),
        ("int64", "bool", [1]),
        ("float64", "float32", [1e300]),
        ("int32", "float32", [2**24 + 1]),
        ("complex128", "complex64", [1e300]),
    ],
)
def test_casts_that_would_lose_values(given: str, wanted: str, values: list[Any]) -> None:
    for allow_nonfinite in (False, True):  # what a cast has made infinite was never allowed
        with pytest.raises(SampleError, match="field 'x'"):
            check_array(spec_of(wanted, (None,)), np.array(values, given), allow_nonfinite)


def test_infinities_stay_what_they_are_in_another_dtype() -> None:
    array = np.array([np.inf, np.nan, 2.0])
    np.testing.assert_array_equal(check_array(spec_of("float32", (3,)), array, True), array)
    with pytest.raises(SampleError, match="2 NaN or infinite"):
        check_array(spec_of("float32", (3,)), array, False)
