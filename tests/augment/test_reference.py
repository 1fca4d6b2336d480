"""Given the same parameters, every batched transform does what its plain per-sample reference does."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.signal
import torch
from tests.augment import cases
from tests.augment.cases import CASES, RATE, batch_keys, signals
from tests.augment.reference import REFERENCES, refer

from flatout.augment import GPUBackgroundMix, GPUBandPass, GPUHighPass, GPULowPass, GPUTimeStretch

SHAPES = [(12, 2, 400), (5, 1, 97), (1, 3, 400), (6, 1, 2), (4, 2, 1), (3, 1, 31)]


def test_every_transform_has_a_reference() -> None:
    assert {type(make(1.0)) for make in CASES.values()} == set(REFERENCES)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_batched_and_per_sample_agree(name: str, shape: tuple[int, int, int]) -> None:
    transform, x, keys = CASES[name](0.7), signals(*shape), batch_keys(shape[0])
    params = transform.sample(x, keys)
    found = transform.apply(x, params).numpy()
    np.testing.assert_allclose(found, refer(transform, x, params), rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("name", CASES)
def test_they_agree_closely_in_double_precision(name: str) -> None:
    transform, x, keys = CASES[name](1.0), signals(6).double(), batch_keys(6)
    params = transform.sample(x, keys)
    found = transform.apply(x, params).numpy()
    np.testing.assert_allclose(found, refer(transform, x, params), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [401, 1000, 400])
def test_longer_backgrounds_are_cut_and_never_wrap(length: int) -> None:
    transform = GPUBackgroundMix(cases.backgrounds(length), p=1.0)
    x = signals(50, 2, 400)
    params = transform.sample(x, batch_keys(50))
    assert params.start.max() <= length - 400
    np.testing.assert_allclose(
        transform.apply(x, params).numpy(), refer(transform, x, params), rtol=1e-4, atol=3e-5
    )


def test_positions_of_a_stretch_stay_exact_over_long_samples() -> None:
    """At 400,000 values a float32 position would be off by 0.03 of a value."""
    x = torch.sin(torch.arange(400_000) * 2.0)[None, None].double()
    transform = GPUTimeStretch((0.93, 0.93), p=1.0)
    params = transform.sample(x, batch_keys(1))
    np.testing.assert_allclose(transform.apply(x, params).numpy(), refer(transform, x, params), atol=1e-6)


@pytest.mark.parametrize(
    ("transform", "kind", "cutoffs"),
    [
        (GPULowPass((50.0, 50.0), p=1.0, sample_rate=RATE), "low", 50.0),
        (GPUHighPass((60.0, 60.0), p=1.0, sample_rate=RATE), "high", 60.0),
        (GPUBandPass((5.0, 5.0), (150.0, 150.0), order=2, p=1.0, sample_rate=RATE), "band", (5.0, 150.0)),
    ],
    ids=["low", "high", "band"],
)
def test_filters_resemble_filtfilt(
    transform: GPULowPass, kind: str, cutoffs: float | tuple[float, float]
) -> None:
    """Near, not equal: filtfilt's filter is digital, and its band-pass one filter of twice the order."""
    x = signals(4, 1, 2000)
    sections = scipy.signal.butter(transform.order, cutoffs, kind, fs=RATE, output="sos")
    wanted = scipy.signal.sosfiltfilt(sections, x.numpy(), axis=-1)[..., 200:-200]
    found = transform(x, batch_keys(4)).numpy()[..., 200:-200]
    assert np.sqrt(np.mean((found - wanted) ** 2)) < 0.1 * np.sqrt(np.mean(wanted**2))


def test_filters_do_not_wrap_around() -> None:
    """A step at the very end must not show at the beginning."""
    x = torch.zeros(1, 1, 400)
    x[..., 390:] = 10.0
    y = GPULowPass((60.0, 60.0), p=1.0, sample_rate=RATE)(x, batch_keys(1))
    assert y[..., :100].abs().max() < 0.01
    assert y[..., -1].item() == pytest.approx(10.0, abs=0.5)
