"""Noise on images is that of signals, seen as one long row; threads and memory do not change it."""

from __future__ import annotations

import pytest
import torch
from tests.augment.cases import batch_keys
from tests.augment.image_cases import images

from flatout.augment import GPUGaussianNoise, GPUImageNoise


def test_it_is_the_noise_of_signals() -> None:
    x, keys = images(), batch_keys(6)
    wanted = GPUGaussianNoise(std=0.2, p=0.6)(x.flatten(2), keys).view_as(x)
    torch.testing.assert_close(GPUImageNoise(std=0.2, p=0.6)(x, keys), wanted, rtol=1e-5, atol=1e-6)


def test_it_has_the_level_asked_for() -> None:
    x = images((8, 3, 64, 64))
    noise = (GPUImageNoise(std=0.3, p=1.0)(x, batch_keys(8)) - x).flatten(1)
    torch.testing.assert_close(noise.std(1) / x.flatten(1).std(1), torch.full((8,), 0.3), rtol=0.03, atol=0.0)
    assert (noise.mean(1).abs() < 0.01).all()
    assert abs(torch.corrcoef(noise[:2])[0, 1]) < 0.05


@pytest.mark.parametrize("num_threads", [2, 5])
def test_threads_change_nothing(num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, noise = images(), GPUImageNoise(p=0.7)
    params = noise.sample(x, batch_keys(6))
    alone = noise.apply(x, params)
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    assert noise.apply(x, params).equal(alone)


def test_in_the_same_memory_it_is_the_same() -> None:
    x, noise = images(), GPUImageNoise(p=0.7)
    params = noise.sample(x, batch_keys(6))
    copy = x.clone()
    made = noise.alter(copy, params, may_overwrite=True)
    assert made.equal(noise.apply(x, params))
    assert made.data_ptr() == copy.data_ptr()
