"""Cutout: lengths and places are even, boxes fit, nothing else changes."""

from __future__ import annotations

import torch
from tests.augment.cases import batch_keys
from tests.augment.image_cases import images
from tests.augment.test_distribution import is_even

from flatout.augment import GPUCutout
from flatout.augment.boxes import inside_boxes

NUM = 20_000


def test_boxes_fit_and_are_even() -> None:
    params = GPUCutout(num_boxes=2, max_fraction=0.29).sample(
        torch.empty(1).expand(NUM, 1, 100, 20), batch_keys(NUM)
    )
    assert is_even(params.width[..., 0], 1, 29)
    assert is_even(params.width[..., 1], 1, 5)
    assert (params.start + params.width).amax((0, 1)).tolist() == [100, 20]
    assert is_even(params.start[..., 1][params.width[..., 1] == 5], 0, 15)


def test_one_box_is_filled_in_all_channels() -> None:
    x = images((5, 3, 10, 12))
    cutout = GPUCutout(max_fraction=0.5, p=1.0, fill=-7.0)
    params = cutout.sample(x, batch_keys(5))
    is_filled = cutout.apply(x, params) == -7.0
    assert is_filled.flatten(2).sum(2).equal(params.width.prod(-1).expand(5, 3))
    assert (cutout.apply(x, params) == x)[~is_filled].all()


def test_shares_too_small_for_one_value_cut_nothing() -> None:
    x = images()
    assert GPUCutout(max_fraction=0.01, p=1.0)(x, batch_keys(6)).equal(x)


def test_places_inside_a_box() -> None:
    found = inside_boxes((3, 4), torch.tensor([[1, 0], [0, 2]]), torch.tensor([[2, 3], [0, 2]]))
    assert found.int().tolist() == [
        [[0, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]],
        [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
    ]
