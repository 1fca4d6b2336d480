"""Measures against plain counting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.store.measure import Measure, is_measured
from flatout.types import FieldSpec

arrays = st.lists(
    st.lists(st.floats(width=32) | st.sampled_from([np.nan, np.inf, -np.inf]), max_size=5).map(
        lambda values: np.array(values, np.float32)
    ),
    max_size=6,
)


def measure_of(samples: list[np.ndarray]) -> Measure:
    found = Measure()
    for sample in samples:
        found.add(sample)
    return found


@given(arrays, st.integers(0, 6))
def test_parts_add_up_to_the_whole(samples: list[np.ndarray], cut: int) -> None:
    whole = np.concatenate([np.empty(0, np.float32), *samples])
    finite = whole[np.isfinite(whole)].astype(np.float64)
    found = measure_of(samples[:cut])
    found.join(measure_of(samples[cut:]))
    told = found.summary()
    assert told["num_measured"] == len(samples)
    assert told["num_nan"] == np.isnan(whole).sum()
    assert told["num_infinite"] == np.isinf(whole).sum()
    assert ("low" in told) == bool(len(finite))
    if len(finite):
        assert (told["low"], told["high"]) == (finite.min(), finite.max())
        assert told["mean"] == pytest.approx(finite.mean(), rel=1e-6, abs=1e-30 + np.abs(finite).max() * 1e-9)


def test_whole_numbers_and_truth_count_and_texts_do_not() -> None:
    found = measure_of([np.array([3, -2], np.int16), np.array(True), np.array([1j]), np.array(["a"])])
    assert found.summary() == {
        "low": -2.0,
        "high": 3.0,
        "mean": 2 / 3,
        "num_measured": 2,
        "num_nan": 0,
        "num_infinite": 0,
    }


def test_which_fields_are_measured() -> None:
    assert is_measured(FieldSpec("x", "array", "uint8", (3,)))
    assert not is_measured(FieldSpec("x", "text", "uint8", (None,)))
    assert not is_measured(FieldSpec("x", "array", "complex64", (3,)))
