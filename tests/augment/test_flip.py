"""Flips and quarter turns: how often, which axes, and what cannot be turned."""

from __future__ import annotations

import pytest
import torch
from tests.augment.cases import batch_keys
from tests.augment.image_cases import images
from tests.augment.test_distribution import is_even

from flatout.augment import GPUFlip, GPUTurn90
from flatout.errors import AugmentError

NUM = 20_000


def test_each_axis_is_flipped_on_its_own() -> None:
    params = GPUFlip((-1, -2, -3), p=0.3).sample(torch.empty(1).expand(NUM, 1, 2, 2, 2), batch_keys(NUM))
    shares = params.flipped.float().mean(0)
    assert ((shares - 0.3).abs() < 0.015).all()
    assert abs(params.flipped.all(1).float().mean() - 0.027) < 0.006
    assert params.active.equal(params.flipped.any(1))


def test_turns_are_equally_likely() -> None:
    params = GPUTurn90(p=0.75).sample(torch.empty(1).expand(NUM, 1, 2, 2), batch_keys(NUM))
    assert is_even(params.turns[params.active], 1, 3)
    assert (params.turns[~params.active] == 0).all()
    assert abs(params.active.float().mean() - 0.75) < 0.015


def test_four_turns_are_none() -> None:
    x, turn = images((4, 2, 7, 7)), GPUTurn90(p=1.0)
    params = turn.sample(x, batch_keys(4))
    y = x
    for _ in range(4):
        y = turn.apply(y, params)
    assert y.equal(x)


def test_two_flips_are_none() -> None:
    x, flip = images((4, 2, 7, 6)), GPUFlip((-1, -2), p=1.0)
    params = flip.sample(x, batch_keys(4))
    assert flip.apply(flip.apply(x, params), params).equal(x)


def test_planes_that_are_not_square_are_refused() -> None:
    with pytest.raises(AugmentError, match=r"GPUTurn90: got \(7, 6\).*wanted equal lengths"):
        GPUTurn90(p=1.0)(images((2, 1, 7, 6)))
    square = GPUTurn90(p=1.0).sample(images((2, 1, 6, 6)), batch_keys(2))
    with pytest.raises(AugmentError, match="wanted equal lengths"):
        GPUTurn90(p=1.0).apply(images((2, 1, 6, 5)), square)
    assert GPUTurn90((-3, -1), p=1.0)(images((2, 1, 6, 5, 6))).shape == (2, 1, 6, 5, 6)


@pytest.mark.parametrize("axes", [(), (0,), (-1, -1), (-4,), (1,)])
def test_impossible_axes_are_refused(axes: tuple[int, ...]) -> None:
    with pytest.raises(AugmentError, match="axes: got"):
        GPUFlip(axes)
    with pytest.raises(AugmentError, match="axes: got"):
        GPUTurn90(axes)


def test_a_plane_has_two_axes() -> None:
    with pytest.raises(AugmentError, match="wanted two"):
        GPUTurn90((-1,))


def test_images_have_no_depth() -> None:
    with pytest.raises(AugmentError, match="wanted axes from -2 to -1"):
        GPUFlip((-3,))(images())
    with pytest.raises(AugmentError, match="wanted axes from -2 to -1"):
        GPUTurn90((-3, -1))(images())
