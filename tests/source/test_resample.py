"""Resampling along axes: equal to SciPy's general interpolation, whatever lies how in memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import map_coordinates

from flatout.source.resample import Positions, in_c_order, memory_order, sample_linear, sample_nearest
from flatout.types import Array

FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)

axis_positions = st.builds(
    Positions,
    num_old=st.integers(1, 9),
    num_new=st.integers(1, 12),
    step=st.floats(0.1, 4.0),
    offset=st.floats(-3.0, 3.0),
)


def laid_out(array: Array, order: Sequence[int], flips: Sequence[bool]) -> Array:
    """The same values, with the axes in another order and direction in memory."""
    stored = array[tuple(slice(None, None, -1 if flip else 1) for flip in flips)].transpose(order)
    view = np.ascontiguousarray(stored).transpose(np.argsort(order))
    return view[tuple(slice(None, None, -1 if flip else 1) for flip in flips)]


@settings(max_examples=150, deadline=None)
@given(
    axes=st.tuples(axis_positions, axis_positions, axis_positions),
    order=st.sampled_from(list(itertools.permutations(range(3)))),
    flips=st.tuples(*[st.booleans()] * 3),
    num_channels=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_linear_is_equal_to_map_coordinates(
    axes: tuple[Positions, ...], order: tuple[int, ...], flips: tuple[bool, ...], num_channels: int, seed: int
) -> None:
    shape = tuple(axis.num_old for axis in axes)
    values = np.random.default_rng(seed).normal(size=(num_channels, *shape))
    array = np.stack([laid_out(channel, order, flips) for channel in values])
    if num_channels == 1:
        array = laid_out(values[0], order, flips)[None]
    points = np.meshgrid(*[axis.values() for axis in axes], indexing="ij")
    wanted = np.stack([map_coordinates(channel, points, order=1, mode="nearest") for channel in values])
    found = sample_linear(array, axes, FLOAT64)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    np.testing.assert_allclose(sample_linear(array, axes, FLOAT32), wanted, atol=2e-6)


@settings(max_examples=100, deadline=None)
@given(
    axes=st.lists(axis_positions, min_size=2, max_size=3),
    order=st.sampled_from(["C", "F"]),
    dtype=st.sampled_from(["u1", "i2", "f4"]),
)
def test_nearest_takes_only_values_that_are_there(axes: list[Positions], order: str, dtype: str) -> None:
    shape = tuple(axis.num_old for axis in axes)
    array = np.asarray(np.random.default_rng(1).integers(0, 200, (1, *shape)).astype(dtype), order=order)  # type: ignore[call-overload]
    found = sample_nearest(array, axes)
    wanted = array[0][np.ix_(*[np.floor(axis.values() + 0.5).astype(int) for axis in axes])]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found[0], wanted)


def test_the_same_points_give_the_same_array() -> None:
    array = np.zeros((1, 2, 3, 4), np.int16)
    axes = [Positions(num, num, 1.0, 0.0) for num in (2, 3, 4)]
    assert sample_linear(array, axes, FLOAT32) is array
    np.testing.assert_array_equal(sample_nearest(array, axes), array)


def test_integers_are_interpolated_as_floats() -> None:
    array = np.array([0, 10], np.uint8).reshape(1, 2, 1, 1)
    same = Positions(1, 1, 1.0, 0.0)
    found = sample_linear(array, [Positions(2, 3, 0.5, 0.0), same, same], FLOAT32)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.ravel(), [0, 5, 10])


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_large_arrays_are_turned_right(order: tuple[int, ...]) -> None:
    array = np.arange(2 * 64 * 70 * 66, dtype=np.int32).reshape(2, 64, 70, 66)
    view = np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))
    found = in_c_order(view, FLOAT32)
    assert found.flags.c_contiguous
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, array)


def test_an_array_that_is_right_already_is_not_copied() -> None:
    array = np.zeros((1, 4, 4, 4), np.float32)
    assert in_c_order(array, FLOAT32) is array


def test_memory_order_goes_from_the_outermost_axis_inwards() -> None:
    array = np.zeros((2, 3, 4))
    assert memory_order(array) == [0, 1, 2]
    assert memory_order(np.asfortranarray(array)) == [2, 1, 0]
    assert memory_order(np.flip(array.transpose(1, 2, 0), 0)) == [2, 0, 1]
