"""Bands taken out of spectra: the same as NumPy's in double precision, whichever way a length goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from flatout.augment import bands, fourier, kernels
from flatout.augment.bands import remove_bands
from flatout.augment.fourier import MAX_LENGTH, plan_transform

LENGTHS = (1, 2, 7, 8, 10, 14, 16, 18, 20, 30, 50, 54, 90, 100, 162, 250, 256, 360, 4000)
"""Short, odd and awkward ones go to SciPy; the others have every radix, alone and with the rest."""


def reference(x: Any, active: Any, start: Any, width: Any) -> Any:
    spectrum = np.fft.rfft(x.astype(np.float64))
    for sample in np.flatnonzero(active):
        spectrum[sample, :, start[sample, 0] : start[sample, 0] + width[sample, 0]] = 0.0
    wanted = np.fft.irfft(spectrum, n=x.shape[-1])
    wanted[~active] = x[~active]
    return wanted


def drawn(seed: int, num_samples: int, num_channels: int, length: int) -> tuple[Any, Any, Any, Any]:
    random = np.random.default_rng(seed)
    num_bins = length // 2 + 1
    width = random.integers(0, num_bins + 1, (num_samples, 1))
    start = random.integers(0, num_bins - width + 1)
    x = random.normal(0.0, 1.0, (num_samples, num_channels, length)).astype(np.float32)
    return x, random.random(num_samples) < 0.7, start, width


def removed(x: Any, active: Any, start: Any, width: Any) -> Any:
    out = np.full_like(x, np.nan)
    remove_bands(kernels, x, active, start, width, out)
    return out


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(1, 3), st.sampled_from(LENGTHS))
def test_what_is_left_is_what_numpy_leaves(seed: int, num_samples: int, num_channels: int, length: int) -> None:
    case = drawn(seed, num_samples, num_channels, length)
    found = removed(*case)
    np.testing.assert_allclose(found, reference(*case), atol=5e-6)
    x, active, *_ = case
    np.testing.assert_array_equal(found[~active], x[~active])


@pytest.mark.parametrize("length", [7, 8, 250, 4000])
def test_a_sample_comes_out_the_same_with_any_others(length: int) -> None:
    x, active, start, width = drawn(3, 21, 2, length)
    active[:] = True
    whole = removed(x, active, start, width)
    for first, last in ((0, 1), (20, 21), (3, 17)):
        part = slice(first, last)
        np.testing.assert_array_equal(removed(x[part], active[part], start[part], width[part]), whole[part])


@pytest.mark.parametrize("length", [9, 250])
def test_a_sample_that_is_no_number_spoils_no_other(length: int) -> None:
    x, active, start, width = drawn(4, 11, 1, length)
    active[:] = True
    width[5] = 1  # of a spectrum that is cleared altogether nothing is left, not even that
    wanted = removed(x, active, start, width)
    x[5] = np.nan
    found = removed(x, active, start, width)
    assert np.isnan(found[5]).all()
    others = np.arange(11) != 5
    np.testing.assert_array_equal(found[others], wanted[others])


def test_every_frequency_goes_by_itself() -> None:
    """A band of one bin takes away just that wave."""
    length = 120
    time = np.arange(length) / length
    waves = np.stack([np.cos(2 * np.pi * k * time + 0.3) for k in range(length // 2 + 1)])
    x = np.broadcast_to(waves.sum(0), waves.shape)[:, None].astype(np.float32)
    start, width = np.arange(len(waves))[:, None], np.ones((len(waves), 1), np.int64)
    found = removed(np.ascontiguousarray(x), np.ones(len(waves), bool), start, width)
    np.testing.assert_allclose(found[:, 0], waves.sum(0) - waves, atol=2e-4)


def test_lengths_have_plans_where_they_are_worth_it() -> None:
    assert plan_transform(4000) is not None
    for length in (4, 999, 4 * 7, MAX_LENGTH + 192):
        assert plan_transform(length) is None, length


def test_both_ways_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    case = drawn(5, 9, 2, 1000)
    fast = removed(*case)
    monkeypatch.setattr(bands, "plan_transform", lambda length: None)
    slow = removed(*case)
    assert fourier.plan_transform(1000) is not None
    np.testing.assert_allclose(fast, slow, atol=2e-6)
