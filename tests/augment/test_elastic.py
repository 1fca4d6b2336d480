"""Elastic deformation: uniform control points, smooth fields, nothing folded."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.interpolate
import torch
from tests.augment.cases import batch_keys
from tests.augment.image_cases import images
from tests.augment.test_distribution import is_uniform

from flatout.augment import GPUElastic, host
from flatout.augment.spline import spline_field
from flatout.errors import AugmentError


def test_control_points_are_uniform() -> None:
    params = GPUElastic(num_cells=2, max_fraction=0.15, p=1.0).sample(
        torch.empty(1).expand(500, 1, 9, 9), batch_keys(500)
    )
    assert params.points.shape == (500, 2, 5, 5)
    assert is_uniform(params.points, -0.15, 0.15)
    volume = GPUElastic(num_cells=1, p=1.0).sample(images((2, 1, 4, 4, 4)), batch_keys(2))
    assert volume.points.shape == (2, 3, 4, 4, 4)


@pytest.mark.parametrize("size", [(7, 12), (5, 6, 9), (1, 3)])
@pytest.mark.parametrize("by_kernel", [True, False])
def test_fields_are_splines(size: tuple[int, ...], by_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not by_kernel:
        monkeypatch.setattr(host, "load_kernels", lambda: None)
    points = torch.randn(3, 2, *(6,) * len(size), generator=torch.Generator().manual_seed(1))
    wanted = points.double().numpy()
    for axis, length in enumerate(size):
        spline = scipy.interpolate.BSpline(np.arange(-3.0, 7.0), np.moveaxis(wanted, 2 + axis, 0), 3)
        wanted = np.moveaxis(spline((np.arange(length) + 0.5) * 3 / length), 0, 2 + axis)
    np.testing.assert_allclose(spline_field(points, size).numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(64, 48), (24, 32, 28)])
def test_nothing_is_folded(size: tuple[int, ...]) -> None:
    """The largest field there can be: points as far as they go, one after another in turns."""
    elastic = GPUElastic(num_cells=3, max_fraction=0.2, p=1.0)
    shape = (1, len(size), *(6,) * len(size))
    signs = torch.stack(torch.meshgrid(*[torch.arange(6)] * len(size), indexing="ij")).sum(0) % 2
    params = elastic.sample(images((1, 1, *size)), batch_keys(1))
    for points in (0.4 * signs.expand(shape) - 0.2, params.points):
        moved = elastic.warp(params._replace(points=points), size).moved
        assert moved is not None
        places = moved[0].double() + torch.stack(
            torch.meshgrid(*[torch.arange(length).double() for length in size], indexing="ij")
        )
        gradients = torch.stack([torch.stack(torch.gradient(one)) for one in places])
        assert torch.linalg.det(gradients.movedim((0, 1), (-2, -1))).min() > 0.0


def test_strong_fields_are_refused() -> None:
    with pytest.raises(AugmentError, match=r"max_fraction: got 0.3, wanted 0 to 0.2"):
        GPUElastic(max_fraction=0.3)
    with pytest.raises(AugmentError, match="num_cells"):
        GPUElastic(num_cells=0)


def test_no_displacement_is_the_identity() -> None:
    x = images()
    assert GPUElastic(max_fraction=0.0, p=1.0)(x, batch_keys(6)).allclose(x, atol=1e-5)
