"""Clipping and normalising: the stated statistics hold afterwards, and bad samples say why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flatout.config.fields import VolumeField
from flatout.errors import ConfigError, SampleError
from flatout.source.intensity import (
    check_window,
    clip,
    finite_minimum,
    normalise_fixed,
    normalise_percentile,
    normalise_sample,
    normalise_unit,
    plan_normaliser,
    range_of,
)
from flatout.types import Array

# Below the normal range float32 itself has too few digits for a mean: 1e-44 is 7 times the smallest number.
values = arrays(np.float32, (2, 3, 4, 5), elements=st.floats(-1e4, 1e4, width=32, allow_subnormal=False))


@settings(max_examples=60, deadline=None)
@given(array=values)
def test_a_normalised_sample_has_mean_0_and_deviation_1(array: Array) -> None:
    try:
        found = normalise_sample(array.copy()).astype(np.float64)
    except SampleError:
        assert array.std() <= 1e-5 * max(abs(array.mean()), 1)
        return
    wanted = (array.astype(np.float64) - array.mean(dtype=np.float64)) / array.std(dtype=np.float64)
    np.testing.assert_allclose(found, wanted, atol=1e-2 if array.std() < 1 else 1e-3)


def test_statistics_of_a_large_sample_are_exact() -> None:
    array = np.random.default_rng(0).normal(5e5, 2.0, (1, 60, 60, 60)).astype(np.float32)
    wanted = (array - array.mean(dtype=np.float64)) / array.std(dtype=np.float64)
    np.testing.assert_allclose(normalise_sample(array.copy()), wanted, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 7.0, 1e6, -3.3])
def test_a_constant_sample_is_refused(value: float) -> None:
    with pytest.raises(SampleError, match="constant"):
        normalise_sample(np.full((1, 4, 4), value, np.float32))
    with pytest.raises(SampleError, match="constant"):
        normalise_percentile(np.full((1, 4, 4), value, np.float32), (0.5, 99.5))


def test_the_last_bits_of_a_constant_are_no_deviation() -> None:
    array = np.full((1, 40, 40), 1000.1, np.float32)
    array[0, ::2] = np.nextafter(array[0, 0, 0], np.float32(2000))
    with pytest.raises(SampleError, match="constant"):
        normalise_sample(array)


@settings(max_examples=60, deadline=None)
@given(array=values, low=st.floats(0, 40), high=st.floats(60, 100))
def test_percentiles_become_0_and_1(array: Array, low: float, high: float) -> None:
    ends = np.percentile(array, (low, high))
    if ends[1] - ends[0] < 1e-3:
        return
    found = normalise_percentile(array.copy(), (low, high))
    np.testing.assert_allclose(np.percentile(found, (low, high)), (0, 1), atol=1e-3)


def test_values_that_are_not_finite_stay_and_count_for_nothing() -> None:
    clean = np.arange(24, dtype=np.float32).reshape(1, 4, 6)
    dirty = np.concatenate([clean, np.full((1, 1, 6), np.nan, np.float32)], axis=1)
    dirty[0, 4, :2] = np.inf, -np.inf
    for function in (normalise_sample, lambda array: normalise_percentile(array, (10, 90))):
        found = function(dirty.copy())
        np.testing.assert_array_equal(found[:, :4], function(clean.copy()))
        assert not np.isfinite(found[0, 4]).any()


def test_a_sample_without_finite_values_is_refused() -> None:
    array = np.full((1, 3, 3), np.nan, np.float32)
    with pytest.raises(SampleError, match="constant"):
        normalise_sample(array)
    with pytest.raises(SampleError, match="no finite value"):
        normalise_percentile(array, (1, 99))


def test_fixed_takes_one_number_or_one_a_channel() -> None:
    array = np.ones((2, 2, 2), np.float32)
    assert normalise_fixed(array.copy(), 3.0, 4.0).tolist() == [[[-0.5, -0.5]] * 2] * 2
    found = normalise_fixed(array.copy(), [1.0, 2.0], [1.0, 0.5])
    assert found[:, 0, 0].tolist() == [0.0, -2.0]
    with pytest.raises(SampleError, match="mean has 3 numbers, the sample 2 channels"):
        normalise_fixed(array, [1.0, 2.0, 3.0], 1.0)


def test_unit_maps_a_range_to_0_and_1() -> None:
    array = np.array([[0.0, 51.0, 255.0]], np.float32)
    np.testing.assert_allclose(normalise_unit(array, (0, 255)), [[0, 0.2, 1]], rtol=1e-6)
    with pytest.raises(SampleError, match="set window"):
        normalise_unit(array, None)


@pytest.mark.parametrize(
    ("dtype", "wanted"), [("u1", (0, 255)), ("i2", (-32768, 32767)), ("?", (0, 1)), ("f4", None)]
)
def test_integers_have_a_range_and_floats_none(dtype: str, wanted: Any) -> None:
    assert range_of(np.dtype(dtype)) == wanted


def test_clip_keeps_nan() -> None:
    found = clip(np.array([-9.0, 0.5, 9.0, np.nan], np.float32), (0, 1))
    np.testing.assert_array_equal(found, [0, 0.5, 1, np.nan])


def test_the_minimum_ignores_what_is_not_finite() -> None:
    assert finite_minimum(np.array([np.nan, 3.0, -np.inf, 5.0])) == 3.0
    assert finite_minimum(np.array([np.nan])) == 0.0
    assert finite_minimum(np.array([4, 2], np.uint8)) == 2.0


@pytest.mark.parametrize("window", [(1.0, 1.0), (2.0, 1.0), (0.0, float("inf")), (float("nan"), 1.0)])
def test_a_window_must_be_in_order(window: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="field 'scan': window"):
        check_window("scan", window)


@pytest.mark.parametrize("percentiles", [(-1.0, 50.0), (60.0, 40.0), (0.0, 101.0), (5.0, 5.0)])
def test_percentiles_must_be_in_order(percentiles: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="field 'scan': percentiles"):
        plan_normaliser("scan", VolumeField(percentiles=percentiles))


@pytest.mark.parametrize(
    ("settings_", "wanted"),
    [
        ({"normalise": "fixed", "mean": 1.0, "std": 2.0}, [-0.5, 0.5, 1.5]),
        ({"normalise": "sample"}, [-np.sqrt(1.5), 0, np.sqrt(1.5)]),
        ({"normalise": "percentile", "percentiles": (0, 50)}, [0, 1, 2]),
        ({"normalise": "unit"}, [0, 0.2, 0.4]),
    ],
)
def test_each_name_plans_its_function(settings_: dict[str, Any], wanted: list[float]) -> None:
    normalise = plan_normaliser("scan", VolumeField(**settings_))
    assert normalise is not None
    array = np.array([[0.0, 2.0, 4.0]], np.float32)
    np.testing.assert_allclose(normalise(array, (0, 10)), [wanted], rtol=1e-6)


def test_none_plans_nothing() -> None:
    assert plan_normaliser("scan", VolumeField()) is None
