"""The sequence kind: which channels, in which order, at which scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.config.fields import SequenceField
from flatout.errors import ConfigError, SampleError
from flatout.source.sequence import make_steps
from flatout.types import Array, Context, Decoded, Row

TABLE = np.arange(12, dtype=np.int16).reshape(4, 3)


def run(array: Array, names: list[str] | None = None, **settings: Any) -> Array:
    info = {} if names is None else {"columns": names}
    found = make_steps("x", SequenceField(**settings), {})(Decoded(array, info=info), Context(Row("k", {})))[
        "x"
    ]
    assert isinstance(found, np.ndarray)
    assert found.flags.c_contiguous
    return found


def test_kept_as_it_is():
    for dtype in (np.int16, np.float64, np.uint8):
        found = run(TABLE.astype(dtype))
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, TABLE)


def test_one_axis_is_one_channel():
    assert run(np.arange(5.0)).shape == (5, 1)


def test_columns_by_name_then_channels_by_position():
    names = ["a", "b", "c"]
    np.testing.assert_array_equal(run(TABLE, names, columns=["c", "a"]), TABLE[:, [2, 0]])
    np.testing.assert_array_equal(run(TABLE, channels=[1]), TABLE[:, [1]])
    np.testing.assert_array_equal(run(TABLE, names, columns=["c", "a"], channels=[1]), TABLE[:, [0]])


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        (None, {"columns": ["a"]}, "names none"),
        (["a", "b", "c"], {"columns": ["a", "d"]}, r"no column \['d'\]"),
        (None, {"channels": [0, 3]}, "the sequence has 3"),
        (None, {"scale": [1.0, 2.0]}, "scale has 2 values for 3"),
        (None, {"shift": [1.0, 2.0]}, "shift has 2 values for 3"),
    ],
)
def test_channels_that_are_not_there(names, settings, message):
    with pytest.raises(SampleError, match=message):
        run(TABLE, names, **settings)


def test_scale_of_another_width_is_found_when_planning():
    with pytest.raises(ConfigError, match="scale has 2 values for 3 channels"):
        make_steps("x", SequenceField(columns=["a", "b", "c"], scale=[1.0, 2.0]), {})


@given(
    st.floats(-100, 100),
    st.lists(st.floats(-100, 100), min_size=3, max_size=3),
    st.sampled_from(["i2", "f8", "u1"]),
)
def test_scaling_is_linear_and_float32(scale, shift, dtype):
    found = run(TABLE.astype(dtype), scale=scale, shift=shift)
    if scale == 1.0 and not any(shift):
        assert found.dtype == dtype
        return
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, TABLE * scale + np.array(shift), rtol=1e-6, atol=1e-5)


def test_dtype_is_met_or_refused():
    assert run(TABLE, dtype="float32").dtype == np.float32
    with pytest.raises(SampleError, match="do not fit uint8"):
        run(TABLE - 1, dtype="uint8")
    with pytest.raises(SampleError, match="have fractions"):
        run(TABLE / 4, dtype="int16")
    assert run(TABLE / 4, dtype="int16", scale=4.0).tolist() == TABLE.tolist()


@pytest.mark.parametrize("array", [np.empty((0, 3)), np.empty(0), np.empty((4, 0))])
def test_empty_sequences_are_refused(array):
    with pytest.raises(SampleError, match="empty") as caught:
        run(array)
    assert caught.value.stage == "check"


@pytest.mark.parametrize(
    "array", [np.zeros((2, 3, 4)), np.float32(1), np.array(["a", "b"]), np.ones(3, complex)]
)
def test_other_arrays_are_refused(array):
    with pytest.raises(SampleError, match="is no sequence"):
        run(np.asarray(array))
