"""Settings that cannot work are refused with the name, what was given and what was wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.augment.cases import batch_keys, signals

from flatout.augment import (
    GPUAmplitudeScale,
    GPUBackgroundMix,
    GPUBandPass,
    GPUBaselineWander,
    GPUColouredNoise,
    GPUFrequencyMask,
    GPUGainEnvelope,
    GPUGaussianNoise,
    GPULowPass,
    GPUTimeMask,
    GPUTimeShift,
    GPUTimeStretch,
)
from flatout.augment.checks import MILLION, millionths
from flatout.errors import AugmentError, FlatoutError

WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: GPUTimeShift(1.1), "max_fraction: got 1.1, wanted a number from 0 to 1"),
    (lambda: GPUTimeShift(float("nan")), "max_fraction: got nan"),
    (lambda: GPUTimeMask(num_masks=-1), "num_masks: got -1, wanted a whole number of at least 0"),
    (lambda: GPUFrequencyMask(-0.1), "max_fraction: got -0.1"),
    (lambda: GPUTimeStretch((0.0, 1.0)), r"range: got \(0.0, 1.0\), wanted .smallest, largest., both above 0"),
    (lambda: GPUTimeStretch((1.1, 0.9)), r"range: got \(1.1, 0.9\)"),
    (lambda: GPUAmplitudeScale((1.0, float("inf"))), "range: got"),
    (lambda: GPUAmplitudeScale((1.0, 2.0, 3.0)), "range: got"),  # type: ignore[arg-type]
    (lambda: GPUGaussianNoise(-1.0), "std: got -1.0"),
    (lambda: GPUColouredNoise(exponent=(2.0, 1.0)), "exponent: got"),
    (lambda: GPUColouredNoise(std=float("nan")), "std: got nan"),
    (lambda: GPUGainEnvelope(num_points=1), "num_points: got 1, wanted a whole number of at least 2"),
    (lambda: GPUBaselineWander(num_waves=0), "num_waves: got 0"),
    (lambda: GPUBaselineWander(sample_rate=0), "sample_rate: got 0"),
    (lambda: GPULowPass((100.0, 2500.0)), "below half of the sample rate, 2500"),
    (lambda: GPULowPass(order=0), "order: got 0"),
    (lambda: GPUBandPass((10.0, 50.0), (40.0, 90.0)), r"low_hz: got .10.0, 50.0. with high_hz .40.0, 90.0."),
    (lambda: GPUBackgroundMix(torch.zeros(3, 100)), r"backgrounds: got \(3, 100\).*wanted \(B, C, T\)"),
    (lambda: GPUBackgroundMix(torch.zeros(3, 1, 0)), r"backgrounds: got \(3, 1, 0\)"),
    (lambda: GPUBackgroundMix(torch.zeros(0, 1, 9)), "backgrounds: got none"),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[message[:24] for _, message in WRONG])
def test_wrong_settings_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(AugmentError, match=message):
        make()


def test_backgrounds_of_other_channels_are_refused() -> None:
    transform = GPUBackgroundMix(torch.ones(2, 3, 50), p=1.0)
    assert transform(signals(4, 3), batch_keys(4)).shape == (4, 3, 400)
    with pytest.raises(AugmentError, match="backgrounds of 3 channels for a batch of 2"):
        transform(signals(4, 2), batch_keys(4))


def test_errors_are_of_the_family() -> None:
    assert issubclass(AugmentError, FlatoutError)
    assert issubclass(AugmentError, ValueError)


@pytest.mark.parametrize(
    ("share", "length", "wanted"), [(0.29, 100, 29), (0.1, 4000, 400), (1.0, 7, 7), (0.0, 9, 0)]
)
def test_shares_of_lengths_are_exact(share: float, length: int, wanted: int) -> None:
    assert length * millionths(share) // MILLION == wanted
