"""The array kind: stored as it is, or exactly as asked, never silently changed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from flatout.config.fields import ArrayField
from flatout.errors import ConfigError, SampleError
from flatout.source.array import cast, make_steps, plan_dtype
from flatout.types import Array, Context, Decoded, Row

CONTEXT = Context(row=Row("k", {}))


def run(decoded: Decoded, **settings: Any) -> Array:
    found = make_steps("x", ArrayField(**settings), {})(decoded, CONTEXT)["x"]
    assert isinstance(found, np.ndarray)
    return found


@pytest.mark.parametrize(
    "array", [np.arange(6).reshape(2, 3), np.float32(3), np.ones(2, np.complex64), np.array([True])]
)
def test_stored_as_it_is(array):
    found = run(Decoded(np.asarray(array)))
    np.testing.assert_array_equal(found, array)
    assert found.dtype == np.asarray(array).dtype


def test_byte_order_and_memory_order_become_plain():
    found = run(Decoded(np.asfortranarray(np.arange(6.0).reshape(2, 3).astype(">f8"))))
    assert found.dtype.isnative
    assert found.flags.c_contiguous
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    "array",
    [
        np.array(["text"]),
        np.zeros(2, "datetime64[s]"),
        np.zeros(2, [("a", "f4")]),
        np.zeros(2, np.longdouble),
        np.array([object()]),
    ],
)
def test_other_than_plain_numbers_is_refused(array):
    with pytest.raises(SampleError, match="cannot be stored"):
        run(Decoded(array))


def members(**found: Array) -> Decoded:
    def loader(array: Array) -> Callable[[], Array]:
        return lambda: array

    only = next(iter(found.values())) if len(found) == 1 else np.empty(0)
    return Decoded(only, info={"members": {name: loader(array) for name, array in found.items()}})


def test_members():
    one, two = members(a=np.ones(3)), members(a=np.ones(3), b=np.zeros(2))
    assert run(one).tolist() == [1, 1, 1]
    assert run(two, member="b").tolist() == [0, 0]
    for decoded, settings in ((two, {}), (two, {"member": "c"}), (one, {"member": "c"})):
        with pytest.raises(SampleError, match="set the field's 'member'"):
            run(decoded, **settings)
    with pytest.raises(SampleError, match="wanted 'a'"):
        run(Decoded(np.ones(3)), member="a")


@given(
    arrays.arrays(np.float64, 5, elements=st.floats(-300, 300)),
    st.sampled_from(["uint8", "int8", "int16", "int64"]),
)
def test_whole_numbers_are_kept_and_all_else_is_refused(array, dtype):
    bounds = np.iinfo(dtype)
    whole = np.rint(array)
    if not np.array_equal(array, whole):
        with pytest.raises(SampleError, match="have fractions"):
            run(Decoded(array), dtype=dtype)
    if whole.min() < bounds.min or whole.max() > bounds.max:
        with pytest.raises(SampleError, match="do not fit"):
            run(Decoded(whole), dtype=dtype)
    else:
        found = run(Decoded(whole), dtype=dtype)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, whole)
        np.testing.assert_array_equal(cast(array, np.dtype(dtype), is_computed=True), whole)


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([np.nan]), "int16"),
        (np.array([np.inf]), "uint8"),
        (np.array([2.0**63]), "int64"),
        (np.array([2**64 - 1], np.uint64), "int64"),
        (np.array([-1]), "uint64"),
        (np.array([1 + 2j]), "float32"),
        (np.array([1 + 2j]), "int8"),
        (np.array([0, 2]), "bool"),
    ],
)
def test_values_that_do_not_fit(array, dtype):
    with pytest.raises(SampleError, match="do not fit"):
        cast(array, np.dtype(dtype))


@pytest.mark.parametrize("dtype", ["int16", "uint8", "bool"])
@pytest.mark.parametrize("array", [np.array([0.0, 0.25]), np.array(0.5, np.float32), np.array([[np.inf, 0.5]])])
def test_stored_fractions_are_not_lost(array, dtype):
    with pytest.raises(SampleError, match=r"fractions \(0\.25|0\.5 is one\), dtype .* encoding: int16"):
        cast(array, np.dtype(dtype))


def test_too_large_for_a_float_becomes_infinite_without_a_warning():
    assert np.isinf(cast(np.array([1e300]), np.dtype("float32")))


def test_empty_arrays_are_cast():
    assert cast(np.empty((0, 3)), np.dtype("uint8")).shape == (0, 3)


@pytest.mark.parametrize("dtype", ["bfloat16", "no such", "object", "U5", "datetime64", "longdouble"])
def test_dtype_that_cannot_be_stored_is_found_when_planning(dtype):
    with pytest.raises(ConfigError, match="field 'x'"):
        make_steps("x", ArrayField(dtype=dtype), {})


def test_planned_dtypes_are_native():
    planned = plan_dtype("x", ">f4")
    assert planned is not None
    assert planned.isnative


def test_steps_travel_to_workers():
    steps = pickle.loads(pickle.dumps(make_steps("x", ArrayField(dtype="float32"), {})))
    assert steps(Decoded(np.arange(3)), CONTEXT)["x"].dtype == np.float32
