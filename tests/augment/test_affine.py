"""Affine maps: distributions, directions, settings, and what happens to distances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import torch
from tests.augment.cases import batch_keys
from tests.augment.image_cases import images
from tests.augment.test_distribution import is_uniform

from flatout.augment import GPUAffine, GPUTurn90
from flatout.errors import AugmentError

NUM = 20_000


def only(**settings: Any) -> GPUAffine:
    """Nothing but what is asked for."""
    still = {"rotation_deg": (0.0, 0.0), "scale": (1.0, 1.0), "max_translation": 0.0, "p": 1.0}
    return GPUAffine(**(still | settings))


@pytest.mark.parametrize("shape", [(NUM, 1, 20, 10), (NUM, 1, 6, 20, 10)])
def test_parameters_are_uniform(shape: tuple[int, ...]) -> None:
    affine = GPUAffine((-20.0, 10.0), (0.5, 2.0), (-5.0, 15.0), max_translation=0.2, p=1.0)
    params = affine.sample(torch.empty(1).expand(shape), batch_keys(NUM))
    assert is_uniform(params.rotation_deg, -20.0, 10.0)
    assert is_uniform(params.scale, 0.5, 2.0)
    assert is_uniform(params.shear_deg, -5.0, 15.0)
    for axis, length in enumerate(shape[2:]):
        assert is_uniform(params.translation[:, axis], -0.2 * length, 0.2 * length)
    columns = torch.cat([params.rotation_deg, params.scale[:, None], params.shear_deg, params.translation], 1)
    assert (np.corrcoef(columns.T.numpy()) - np.eye(columns.shape[1])).__abs__().max() < 0.04


def test_a_quarter_is_that_of_the_quarter_turns() -> None:
    x = images((3, 2, 8, 8))
    turned = only(rotation_deg=(90.0, 90.0))(x, batch_keys(3)).numpy()
    np.testing.assert_allclose(turned, np.rot90(x.numpy(), 1, (-2, -1)), atol=1e-4)
    assert GPUTurn90().axes == (-2, -1)


def test_turns_about_one_axis_of_a_volume_leave_its_planes() -> None:
    x = torch.arange(5.0).view(1, 1, 5, 1, 1).expand(2, 1, 5, 9, 9)
    y = only(rotation_deg=(30.0, 30.0), rotation_axes=(-3,), padding="border")(x, batch_keys(2))
    torch.testing.assert_close(y, x, rtol=0, atol=1e-4)
    assert not only(rotation_deg=(30.0, 30.0), padding="border")(x, batch_keys(2)).allclose(x, atol=0.1)


def test_translations_move_towards_the_end() -> None:
    x = torch.zeros(40, 1, 11, 11)
    x[:, :, 5, 5] = 1.0
    affine = only(max_translation=0.25)
    params = affine.sample(x, batch_keys(40))
    y = affine.apply(x, params)
    places = torch.arange(11.0)
    centre = torch.stack([(y.sum(3)[:, 0] * places).sum(1), (y.sum(2)[:, 0] * places).sum(1)], 1)
    torch.testing.assert_close(centre, 5.0 + params.translation, rtol=0, atol=1e-4)


def test_scales_above_one_make_things_larger() -> None:
    x = torch.zeros(1, 1, 21, 21)
    x[..., 7:14, 7:14] = 1.0
    larger = only(scale=(2.0, 2.0))(x, batch_keys(1)).sum()
    assert larger.item() == pytest.approx(4 * 49, rel=0.05)


def test_with_spacing_a_turned_ball_stays_a_ball() -> None:
    """Values 3 mm apart along the depth: without the spacing the ball would become an egg."""
    depth, height, width = np.meshgrid(np.arange(9) * 3.0, np.arange(25.0), np.arange(25.0), indexing="ij")
    distance = np.sqrt((depth - 12) ** 2 + (height - 12) ** 2 + (width - 12) ** 2)
    x = torch.from_numpy(distance)[None, None].float()
    turned = only(rotation_deg=(40.0, 40.0), padding="border", spacing=(3.0, 1.0, 1.0))(x, batch_keys(1))
    inner = (..., slice(3, 6), slice(8, 17), slice(8, 17))
    assert (turned - x)[inner].abs().mean() < 0.2
    egg = only(rotation_deg=(40.0, 40.0), padding="border")(x, batch_keys(1))
    assert (egg - x)[inner].abs().mean() > 0.5


def test_distances_keep_their_values_and_scale_with_the_picture() -> None:
    """As the page says: times `params.scale` they are again what the moved mask would give."""
    mask = np.zeros((41, 41))
    mask[16:25, 14:27] = 1
    distance = scipy.ndimage.distance_transform_edt(1 - mask) - scipy.ndimage.distance_transform_edt(mask)
    x = torch.from_numpy(distance)[None, None].float()
    affine = only(scale=(1.5, 1.5), rotation_deg=(30.0, 30.0))
    params = affine.sample(x, batch_keys(1))
    moved_mask = affine.apply(torch.from_numpy(mask)[None, None], params, "mask")[0, 0].numpy()
    new = scipy.ndimage.distance_transform_edt(1 - moved_mask) - scipy.ndimage.distance_transform_edt(
        moved_mask
    )
    kept = affine.apply(x, params, "distance")[0, 0].numpy()
    near = np.abs(new) < 10
    assert np.abs(kept * float(params.scale) - new)[near].mean() < 0.6
    assert np.abs(kept - new)[near].mean() > 1.0


def test_outside_is_zero_or_the_border_and_distances_go_on() -> None:
    x = torch.ones(30, 1, 10, 10)
    for padding, kind, least in (("zeros", "image", 0.0), ("border", "image", 1.0), ("zeros", "distance", 1.0)):
        affine = only(max_translation=0.5, padding=padding)
        params = affine.sample(x, batch_keys(30))
        assert affine.apply(x, params, kind).min().item() == pytest.approx(least, abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"scale": (0.0, 1.0)}, "scale: got"),
        ({"shear_deg": (0.0, 90.0)}, "shear_deg: got .*less than 90"),
        ({"max_translation": 1.5}, "max_translation: got"),
        ({"rotation_deg": (5.0, -5.0)}, "rotation_deg: got"),
        ({"padding": "reflect"}, "padding: got 'reflect', wanted one of zeros, border"),
        ({"spacing": (1.0, 0.0)}, "spacing: got"),
        ({"rotation_axes": (0,)}, "rotation_axes: got"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(AugmentError, match=match):
        GPUAffine(**settings)


def test_spacing_of_other_dimensions_is_refused() -> None:
    with pytest.raises(AugmentError, match="wanted 2 numbers"):
        GPUAffine(p=1.0, spacing=(1.0, 1.0, 1.0))(images(), batch_keys(6))
