"""Mean and deviation, by loop and by torch, of few and many values, far from zero too."""

from __future__ import annotations

import numpy as np
import pytest
from tests.augment.image_cases import images

from flatout.augment import host
from flatout.augment.moments import moments


@pytest.mark.parametrize("by_kernel", [True, False])
@pytest.mark.parametrize("shape", [(5, 2, 9, 7), (1, 1, 1, 1), (2, 1, 64, 64), (0, 1, 3, 3)])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_they_are_those_of_numpy(
    shape: tuple[int, ...], offset: float, by_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_kernel:
        monkeypatch.setattr(host, "load_kernels", lambda: None)
    x = images(shape) + offset
    rows = x.flatten(1).double().numpy() if len(x) else np.zeros((0, 1))
    mean, deviation = moments(x)
    np.testing.assert_allclose(mean.numpy(), rows.mean(1), rtol=1e-6)
    np.testing.assert_allclose(deviation.numpy(), rows.std(1), rtol=1e-4, atol=1e-6)


def test_no_gradient_flows() -> None:
    assert not any(one.requires_grad for one in moments(images().requires_grad_()))
