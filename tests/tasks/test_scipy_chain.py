"""SciPy's chain: each transform against what it is to do, and all of them over many draws."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.augment.ready import CHAIN, get_gpu_pretrain_transforms
from flatout.config import load_config
from flatout.errors import ConfigError
from flatout.tasks import scipy_chain
from flatout.tasks.scipy_chain import CHANGES, FILTERS, ScipyChain

RATE = 5000
OFF = {"p": 0.0}
DEFAULTS = ("time_shift", "amplitude_scale", "gaussian_noise", "time_mask", "frequency_mask", "time_stretch")


def chain_of(order: tuple[str, ...] = tuple(CHAIN), **sections: Any) -> ScipyChain:
    only = {**dict.fromkeys(DEFAULTS, OFF), **sections}
    return ScipyChain(load_config({"augmentation": only}).augmentation, RATE, order)


def run(name: str, x: np.ndarray[Any, Any], seed: int = 0, **section: Any) -> np.ndarray[Any, Any]:
    return chain_of(**{name: {"p": 1.0, **section}})(x, np.random.default_rng(seed))


def tone(hertz: float, length: int = 2000) -> np.ndarray[Any, Any]:
    return np.sin(2 * np.pi * hertz * np.arange(length) / RATE)[None].astype(np.float32)


def test_nothing_is_drawn_nothing_changes() -> None:
    x = tone(50)
    assert np.array_equal(chain_of()(x, np.random.default_rng(0)), x)


def test_shift_scale_polarity() -> None:
    x = tone(40)
    shifted = run("time_shift", x, max_fraction=0.5)
    assert sorted(shifted[0]) == sorted(x[0])
    assert not np.array_equal(shifted, x)
    np.testing.assert_allclose(run("amplitude_scale", x, range=[3.0, 3.0]), 3 * x, rtol=1e-6)
    assert np.array_equal(run("polarity_inversion", x), -x)


def test_noise_is_measured_by_the_sample() -> None:
    x = 7 * tone(40, 20_000)
    noise = run("gaussian_noise", x, std=0.1) - x
    assert noise.std() == pytest.approx(0.1 * x.std(), rel=0.05)


@given(st.integers(0, 200))
def test_masks_cover_at_most_their_share(seed: int) -> None:
    x = np.ones((2, 400), np.float32)
    masked = run("time_mask", x, seed, num_masks=2, max_fraction=0.1)
    assert np.array_equal(masked[0], masked[1])
    assert set(np.unique(masked)) <= {0.0, 1.0}
    assert (masked[0] == 0).sum() <= 80


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_stretched_tones_have_another_pitch(factor: float) -> None:
    x = tone(200)
    y = run("time_stretch", x, range=[factor, factor])
    assert y.shape == x.shape
    num = int(min(1.0, factor) * 2000)
    spectrum = np.abs(np.fft.rfft(y[0, :num]))
    assert np.argmax(spectrum) * RATE / num == pytest.approx(200 / factor, abs=6)
    assert np.abs(y[0, num + 1 :]).max(initial=0.0) == 0.0


@pytest.mark.parametrize(
    ("name", "section", "kept", "lost"),
    [
        ("low_pass", {"cutoff_hz": [300, 300]}, 60, 1200),
        ("high_pass", {"cutoff_hz": [100, 100]}, 400, 20),
        ("band_pass", {"low_hz": [100, 100], "high_hz": [500, 500]}, 250, 1500),
    ],
)
def test_filters_keep_and_lose(name: str, section: dict[str, Any], kept: float, lost: float) -> None:
    inner = slice(500, 1500)
    for hertz, share in ((kept, 1.0), (lost, 0.0)):
        x = tone(hertz)
        y = run(name, x, **section)
        assert y[0, inner].std() / x[0, inner].std() == pytest.approx(share, abs=0.05)
    assert np.abs(run(name, tone(kept), **section) - tone(kept))[0, inner].max() < 0.05  # no delay


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.floats(0.02, 0.9))
def test_removed_bands_stay_finite(seed: int, fraction: float) -> None:
    """A filter of order 8 as one polynomial is not stable everywhere; where it is used it has to be."""
    x = np.random.default_rng(seed).standard_normal((1, 1000)).astype(np.float32)
    y = run("frequency_mask", x, seed, max_fraction=fraction)
    assert np.isfinite(y).all()
    assert np.abs(y).max() < 3 * np.abs(x).max()
    assert y.std() < 1.05 * x.std()


def test_a_band_is_removed() -> None:
    x = np.random.default_rng(1).standard_normal((1, 20_000)).astype(np.float32)
    y = run("frequency_mask", x, 3, max_fraction=0.3)
    before, after = (np.abs(np.fft.rfft(one[0]))[:10_000].reshape(-1, 100).mean(1) for one in (x, y))
    weakened = after / before < 0.3
    assert 0.01 < weakened.mean() < 0.35
    assert (after / before)[~weakened].min() > 0.3


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_the_whole_chain(seed: int) -> None:
    names = {name: {"p": 1.0} for name in (*CHANGES, *FILTERS)}
    chain = chain_of(**names)
    x = np.random.default_rng(seed).standard_normal((1, 800)).astype(np.float32)
    y = chain(x, np.random.default_rng(seed))
    assert y.shape == x.shape
    assert y.dtype == np.float32
    assert np.isfinite(y).all()
    assert np.array_equal(y, pickle.loads(pickle.dumps(chain))(x, np.random.default_rng(seed)))
    np.random.seed(seed)
    assert chain(x, np.random).shape == x.shape


def test_probabilities() -> None:
    chain, rng = chain_of(polarity_inversion={"p": 0.25}), np.random.default_rng(0)
    x = np.ones((1, 4), np.float32)
    share = np.mean([chain(x, rng)[0, 0] < 0 for _ in range(2000)])
    assert share == pytest.approx(0.25, abs=0.04)


def test_it_has_what_the_device_has_by_default() -> None:
    config = load_config({})
    wanted = [name for name in CHAIN if getattr(config.augmentation, name) is not None]
    assert len(wanted) == len(get_gpu_pretrain_transforms(config))
    assert set(wanted) == set(DEFAULTS) <= set(CHANGES)


def test_what_it_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"augmentation\.coloured_noise.*time_stretch.*use_gpu_augment: true"):
        chain_of(coloured_noise={})


def test_its_text_tells_its_settings() -> None:
    assert str(chain_of(time_mask={"p": 0.3})) != str(chain_of(time_mask={"p": 0.4}))
    assert str(chain_of()) == str(chain_of())
    assert "sample_rate=5000" in str(chain_of())
    assert scipy_chain.STOP_ORDER == 4
