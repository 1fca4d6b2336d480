"""Given the same parameters, every batched image transform does what its plain per-sample reference does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.augment.cases import batch_keys
from tests.augment.image_cases import IMAGE_CASES, SHAPES, SPATIAL, crop_for, images, label_masks
from tests.augment.image_reference import REFERENCES, refer_image

from flatout.augment import GPUAffine, GPUElastic, GPUFlip, GPUTurn90
from flatout.types import Array

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=["image", "volume"])


def differing(found: torch.Tensor, wanted: Array) -> float:
    return float(np.mean(found.numpy() != wanted))


def test_every_transform_has_a_reference() -> None:
    assert {type(make(1.0)) for make in IMAGE_CASES.values()} | {type(crop_for(SHAPES[0]))} == set(REFERENCES)


@every_shape
@pytest.mark.parametrize("name", IMAGE_CASES)
@pytest.mark.parametrize("kind", ["image", "distance"])
def test_batched_and_per_sample_agree(name: str, kind: Any, shape: tuple[int, ...]) -> None:
    transform, x = IMAGE_CASES[name](0.7), images(shape)
    params = transform.sample(x, batch_keys(shape[0]))
    found = transform.apply(x, params, kind).numpy()
    np.testing.assert_allclose(found, refer_image(transform, x, params, kind), rtol=1e-4, atol=1e-4)


@every_shape
@pytest.mark.parametrize("name", IMAGE_CASES)
def test_they_agree_closely_in_double_precision_by_torch_alone(name: str, shape: tuple[int, ...]) -> None:
    """float64 never goes to the compiled loops."""
    transform, x = IMAGE_CASES[name](1.0), images(shape).double()
    params = transform.sample(x, batch_keys(shape[0]))
    found = transform.apply(x, params).numpy()
    np.testing.assert_allclose(found, refer_image(transform, x, params), rtol=1e-5, atol=2e-5)


@every_shape
@pytest.mark.parametrize("name", SPATIAL)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32, torch.int16])
def test_masks_follow_with_the_nearest_label(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Where a place lies half-way between two values, rounding decides; that is rare."""
    transform, mask = SPATIAL[name](0.8), label_masks(shape, dtype)
    params = transform.sample(images(shape), batch_keys(shape[0]))
    found = transform.apply(mask, params, "mask")
    assert found.dtype == dtype
    assert set(found.unique().tolist()) <= {0, 3, 40, 200}
    assert differing(found, refer_image(transform, mask, params, "mask")) < 0.003


@pytest.mark.parametrize("shape", [(3, 2, 7, 11), (3, 1, 4, 9, 6), (1, 3, 1, 5), (2, 1, 1, 1), (2, 1, 1, 6, 5)])
@pytest.mark.parametrize("name", ["flip", "affine", "affine_border", "elastic", "blur", "cutout", "gamma"])
def test_odd_shapes(name: str, shape: tuple[int, ...]) -> None:
    transform, x = IMAGE_CASES[name](1.0), images(shape)
    params = transform.sample(x, batch_keys(shape[0]))
    if name == "gamma" and x[0].numel() == 1:
        return
    found = transform.apply(x, params).numpy()
    np.testing.assert_allclose(found, refer_image(transform, x, params), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(5, 2, 9, 13), (4, 1, 5, 9, 8)])
def test_crops_agree_exactly(shape: tuple[int, ...]) -> None:
    transform, x = crop_for(shape), images(shape)
    params = transform.sample(x, batch_keys(shape[0]))
    for one, kind in ((x, "image"), (x, "distance"), (label_masks(shape), "mask")):
        assert (transform.apply(one, params, kind).numpy() == refer_image(transform, one, params, kind)).all()


def test_flips_and_turns_of_every_axis_are_exact() -> None:
    x = images((8, 2, 6, 6, 6))
    for transform in (GPUFlip(axes=(-3, -1), p=0.5), GPUTurn90((-3, -1), p=0.9), GPUTurn90((-1, -2), p=0.9)):
        params = transform.sample(x, batch_keys(8))
        assert (
            transform.apply(x, params).numpy() == refer_image(transform, x, params).astype(np.float32)
        ).all()


@pytest.mark.parametrize(
    "transform",
    [
        GPUAffine((-30.0, 30.0), shear_deg=(-20.0, 20.0), p=1.0, spacing=(3.0, 1.0, 0.5)),
        GPUAffine((-90.0, 90.0), (1.0, 1.0), max_translation=0.0, p=1.0, rotation_axes=(-3,)),
        GPUElastic(num_cells=1, max_fraction=0.2, p=1.0),
    ],
    ids=["spacing", "one axis", "one cell"],
)
def test_settings_of_volumes(transform: Any) -> None:
    x = images((4, 2, 6, 9, 8))
    params = transform.sample(x, batch_keys(4))
    np.testing.assert_allclose(
        transform.apply(x, params).numpy(), refer_image(transform, x, params), rtol=1e-4, atol=2e-4
    )
