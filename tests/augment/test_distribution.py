"""Every parameter has the distribution that its setting promises; keys are fixed, so nothing here is luck."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from tests.augment.cases import CASES, batch_keys, signals
from torch import Tensor

from flatout import augment

NUM = 20_000
LENGTH = 200


def drawn(transform: Any, length: int = LENGTH) -> Any:
    return transform.sample(torch.empty(NUM, 1, length), batch_keys(NUM))


def is_uniform(values: Tensor, low: float, high: float) -> bool:
    exact = values.double().numpy().ravel()
    return bool(scipy.stats.kstest(exact, "uniform", args=(low, high - low)).pvalue > 0.001)


def is_even(values: Tensor, first: int, last: int) -> bool:
    counts = np.bincount(values.numpy().ravel() - first, minlength=last - first + 1)
    return len(counts) == last - first + 1 and bool(scipy.stats.chisquare(counts).pvalue > 0.001)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("name", CASES)
def test_the_share_of_active_samples_is_p(name: str, p: float) -> None:
    share = drawn(CASES[name](p)).active.float().mean().item()
    assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / NUM)


def test_uniform_parameters() -> None:
    assert is_uniform(drawn(augment.GPUAmplitudeScale((0.5, 3.0))).factor, 0.5, 3.0)
    assert is_uniform(drawn(augment.GPUTimeStretch((0.8, 1.1))).factor, 0.8, 1.1)
    assert is_uniform(drawn(augment.GPUGainEnvelope((0.2, 0.9), num_points=3)).gains, 0.2, 0.9)
    assert is_uniform(drawn(augment.GPUColouredNoise(exponent=(-2.0, 2.0))).exponent, -2.0, 2.0)
    assert is_uniform(
        drawn(augment.GPUBackgroundMix(torch.ones(1, 1, 5), snr_db=(-3.0, 9.0))).snr_db, -3.0, 9.0
    )
    wander = drawn(augment.GPUBaselineWander((0.1, 0.4), (0.2, 0.6), num_waves=2))
    assert is_uniform(wander.amplitude, 0.1, 0.4)
    assert is_uniform(wander.frequency_hz, 0.2, 0.6)
    assert is_uniform(wander.phase, 0.0, 1.0)


def test_cutoffs_are_uniform_in_their_logarithm() -> None:
    for kind in (augment.GPULowPass, augment.GPUHighPass):
        assert is_uniform(drawn(kind((20.0, 500.0))).cutoff_hz.log(), math.log(20), math.log(500))
    band = drawn(augment.GPUBandPass((10.0, 90.0), (100.0, 900.0)))
    assert is_uniform(band.low_hz.log(), math.log(10), math.log(90))
    assert is_uniform(band.high_hz.log(), math.log(100), math.log(900))


def test_shifts_go_both_ways_evenly() -> None:
    assert is_even(drawn(augment.GPUTimeShift(0.1)).shift, -20, 20)
    assert is_even(drawn(augment.GPUTimeShift(1.0), length=9).shift, -9, 9)
    assert drawn(augment.GPUTimeShift(0.0)).shift.abs().max() == 0


def test_a_share_of_a_length_is_exact() -> None:
    """0.29 x 100 is 28.999... in floating point."""
    assert drawn(augment.GPUTimeShift(0.29), length=100).shift.max() == 29


def test_time_masks_fit_and_are_even() -> None:
    params = drawn(augment.GPUTimeMask(num_masks=3, max_fraction=0.05))
    assert is_even(params.width, 1, 10)
    assert (params.start + params.width).max() == LENGTH
    for width in (1, 10):
        assert is_even(params.start[params.width == width], 0, LENGTH - width)


def test_frequency_masks_fit_and_are_even() -> None:
    params = drawn(augment.GPUFrequencyMask(max_fraction=0.1))
    assert is_even(params.width, 1, 10)
    assert is_even(params.start[params.width == 4], 0, 101 - 4)


def test_masks_of_nothing_mask_nothing() -> None:
    x = signals(50, 1, LENGTH)
    for nothing in (augment.GPUTimeMask(max_fraction=0.001, p=1.0), augment.GPUTimeMask(num_masks=0, p=1.0)):
        assert nothing(x, batch_keys(50)).equal(x)
    assert drawn(augment.GPUFrequencyMask(max_fraction=0.0)).width.max() == 0


def test_backgrounds_and_their_places_are_even() -> None:
    params = drawn(augment.GPUBackgroundMix(torch.ones(5, 1, LENGTH + 9)))
    assert is_even(params.entry, 0, 4)
    assert is_even(params.start, 0, 9)


def test_white_noise_has_the_level_and_the_flat_spectrum_asked_for() -> None:
    x = signals(200, 1, 1024)
    noise = (augment.GPUGaussianNoise(std=0.3, p=1.0)(x, batch_keys(200)) - x) / x.std(
        dim=(1, 2), keepdim=True, correction=0
    )
    assert noise.std().item() == pytest.approx(0.3, rel=0.01)
    assert abs(noise.mean().item()) < 0.003
    assert slope(noise) == pytest.approx(0.0, abs=0.05)


@pytest.mark.parametrize("exponent", [-1.0, 0.0, 1.0, 2.0])
def test_coloured_noise_has_the_level_and_the_slope_asked_for(exponent: float) -> None:
    x = signals(200, 1, 1024)
    noise = augment.GPUColouredNoise(0.2, (exponent, exponent), p=1.0)(x, batch_keys(200)) - x
    own = x.std(dim=(1, 2), correction=0)
    np.testing.assert_allclose(noise.square().mean((1, 2)).sqrt() / own, 0.2, rtol=1e-3)
    assert slope(noise) == pytest.approx(-exponent, abs=0.05)


def slope(noise: Tensor) -> float:
    """Of log power over log frequency."""
    power = torch.fft.rfft(noise).abs().square().mean(dim=(0, 1))[1:-1]
    bins = np.log(np.arange(1, len(power) + 1))
    return float(np.polyfit(bins, power.log().numpy(), 1)[0])


def test_backgrounds_lie_as_far_below_as_asked() -> None:
    x = signals(30, 2, LENGTH)
    y = augment.GPUBackgroundMix(torch.randn(4, 1, 500), snr_db=(6.0, 6.0), p=1.0)(x, batch_keys(30))
    ratio = x.square().mean((1, 2)) / (y - x).square().mean((1, 2))
    np.testing.assert_allclose(10 * ratio.log10(), 6.0, atol=0.01)


def test_wander_is_slow_and_within_its_amplitude() -> None:
    x = signals(30, 1, 2000)
    drift = augment.GPUBaselineWander((0.3, 0.3), (0.5, 2.0), p=1.0, sample_rate=1000)(x, batch_keys(30)) - x
    assert (drift.abs().amax((1, 2)) <= 0.301 * x.std(dim=(1, 2))).all()
    power = torch.fft.rfft(drift - drift.mean(-1, keepdim=True), dim=-1).abs().square()
    assert (power[..., :40].sum() / power.sum()).item() > 0.99
