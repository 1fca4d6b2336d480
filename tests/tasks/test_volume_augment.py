"""Volumes turned by SciPy, one at a time, land where whole batches land."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flatout.augment import GPUAffine
from flatout.augment.affine import AffineParams
from flatout.tasks.volume_augment import moved


def test_a_quarter_turn() -> None:
    volume = np.random.default_rng(0).normal(size=(1, 6, 6, 6)).astype(np.float32)
    turned = moved(volume, np.array([90.0, 0.0, 0.0]), np.zeros(3))
    assert any(np.allclose(turned[0], np.rot90(volume[0], turns, (1, 2)), atol=1e-5) for turns in (1, 3))


def test_a_shift() -> None:
    volume = np.arange(2 * 5 * 4 * 3, dtype=np.float32).reshape(2, 5, 4, 3)
    shifted = moved(volume, np.zeros(3), np.array([2.0, 0.0, -1.0]))
    np.testing.assert_allclose(shifted[:, 2:, :, :-1], volume[:, :-2, :, 1:])
    np.testing.assert_allclose(shifted[:, 0, :, :-1], volume[:, 0, :, 1:])  # the border goes on


@pytest.mark.parametrize("angles", [(8.0, 0.0, 0.0), (0.0, -5.0, 0.0), (0.0, 0.0, 9.0), (3.0, -7.0, 6.0)])
def test_the_same_as_on_the_device(angles: tuple[float, ...]) -> None:
    volume = torch.randn(1, 1, 14, 12, 10, generator=torch.Generator().manual_seed(0))
    shifts = (1.5, -0.75, 0.5)
    params = AffineParams(
        torch.ones(1, dtype=torch.bool),
        torch.tensor([angles]),
        torch.ones(1),
        torch.zeros(1, 3),
        torch.tensor([shifts]),
    )
    on_device = GPUAffine(padding="border").apply(volume, params)
    single = moved(volume[0].numpy(), np.array(angles), np.array(shifts))
    np.testing.assert_allclose(single, on_device[0].numpy(), atol=1e-4)
