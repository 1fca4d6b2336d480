"""Warps: chained ones do what their steps do one after another; compiled loops and torch see the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.augment.image_cases import SHAPES, images, label_masks

from flatout.augment import host
from flatout.augment.warp import Warp, followed_by, product, resampled, still
from flatout.errors import AugmentError

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=["image", "volume"])


def some_warp(shape: tuple[int, ...], strength: float = 0.2, seed: int = 0, bent: bool = False) -> Warp:
    generator = torch.Generator().manual_seed(seed)
    num_samples, size = shape[0], shape[2:]
    identity = still(torch.ones(num_samples, dtype=torch.bool), size)
    noise = torch.randn(identity.matrix.shape, generator=generator) * strength
    noise[..., -1] *= 5.0
    moved = torch.randn(num_samples, len(size), *size, generator=generator) if bent else None
    active = torch.ones(num_samples, dtype=torch.bool)
    return Warp(active, identity.matrix + noise, size, moved)


def by_torch(x: torch.Tensor, warp: Warp, monkeypatch: pytest.MonkeyPatch, **how: bool) -> torch.Tensor:
    with monkeypatch.context() as patched:
        patched.setattr(host, "load_kernels", lambda: None)
        return resampled(x, warp, **how)


@every_shape
@pytest.mark.parametrize("border", [False, True])
@pytest.mark.parametrize("bent", [False, True])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_compiled_loops_agree_with_torch(
    shape: tuple[int, ...], border: bool, bent: bool, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, warp = images(shape), some_warp(shape, bent=bent)
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    found = resampled(x, warp, nearest=False, border=border)
    wanted = by_torch(x, warp, monkeypatch, nearest=False, border=border)
    assert not found.equal(x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    mask = label_masks(shape)
    labels = resampled(mask, warp, nearest=True, border=border)
    assert (labels != by_torch(mask, warp, monkeypatch, nearest=True, border=border)).float().mean() < 0.003


@pytest.mark.parametrize(
    "shape", [(2, 2, 3, 4, 130), (2, 1, 1, 5, 64), (2, 2, 3, 1, 65), (2, 2, 5, 1), (2, 1, 4, 2)]
)
@pytest.mark.parametrize("border", [False, True])
@pytest.mark.parametrize("bent", [False, True])
def test_so_they_do_for_long_rows_and_axes_of_one_value(
    shape: tuple[int, ...], border: bool, bent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, warp = images(shape), some_warp(shape, 0.02, bent=bent)
    warp.active[1] = False
    found = resampled(x, warp, nearest=False, border=border)
    wanted = by_torch(x, warp, monkeypatch, nearest=False, border=border)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    stayed = resampled(x, warp._replace(stays=True), nearest=False, border=border)
    assert stayed[1].equal(x[1])
    assert stayed[0].equal(found[0])


def test_the_border_is_exact() -> None:
    """A share of the last value is a share of one: nothing is left of the one before it."""
    x = torch.tensor([3e8, 1.0, 3e8, 1.1]).expand(2, 1, 4, 4, 4)
    warp = still(torch.ones(2, dtype=torch.bool), (4, 4, 4))._replace(active=torch.ones(2, dtype=torch.bool))
    warp.matrix[:, 2, 3] = 3.0
    assert (resampled(x, warp._replace(is_exact=False), nearest=False, border=True) == x[..., 3:]).all()
    x = torch.tensor([1.0, 1.0, float("nan"), 1.1]).expand(2, 1, 4, 4, 4)
    assert (resampled(x, warp._replace(is_exact=False), nearest=False, border=True) == x[..., 3:]).all()


def test_what_is_the_same_everywhere_stays_so() -> None:
    x = torch.full((2, 1, 7, 9, 8), 1.1)
    assert resampled(x, some_warp(tuple(x.shape)), nearest=False, border=True).equal(x)


def test_samples_of_another_size_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    x = images((2, 1, 5, 6, 7))
    warp = some_warp((2, 1, 4, 5, 9))._replace(active=torch.tensor([True, False]), stays=True)
    found = resampled(x, warp, nearest=False, border=False)
    wanted = by_torch(x, warp._replace(stays=False), monkeypatch, nearest=False, border=False)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int16,
        torch.float16,
        torch.bfloat16,
        torch.int32,
        torch.float64,
        torch.int64,
    ],
)
def test_the_nearest_value_keeps_its_dtype_and_bits(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, warp = images().mul(90).to(dtype), some_warp(SHAPES[0])
    found = resampled(x, warp, nearest=True, border=True)
    assert found.dtype == dtype
    assert set(found.unique().tolist()) <= set(x.unique().tolist())
    assert (found != by_torch(x, warp, monkeypatch, nearest=True, border=True)).float().mean() < 0.003


@every_shape
@pytest.mark.parametrize("far", [1e9, -1e9, 3e38])
def test_places_far_outside_are_outside(shape: tuple[int, ...], far: float) -> None:
    x, warp = images(shape), still(torch.ones(shape[0], dtype=torch.bool), shape[2:])
    warp.matrix[:, -1, -1] = far
    warp = warp._replace(is_exact=False)
    for nearest in (False, True):
        assert resampled(x, warp, nearest=nearest, border=False).abs().max() == 0.0
        edge = x[..., -1:] if far > 0 else x[..., :1]
        assert resampled(x, warp, nearest=nearest, border=True).equal(edge.expand_as(x))


@every_shape
def test_leaving_everything_in_place_is_exact(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    x, warp = images(shape), still(torch.ones(shape[0], dtype=torch.bool), shape[2:])._replace(is_exact=False)
    x[0].view(-1)[::7] = float("nan")
    for border in (False, True):
        for found in (
            resampled(x, warp, nearest=False, border=border),
            by_torch(x, warp, monkeypatch, nearest=False, border=border),
        ):
            np.testing.assert_array_equal(found.numpy(), x.numpy())


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), num_axes=st.sampled_from([2, 3]), bent=st.booleans())
def test_two_warps_are_one(seed: int, num_axes: int, bent: bool) -> None:
    """Of a ramp, which interpolation leaves a ramp: only places count then, none of them outside."""
    shape = (2, 1, *(9,) * num_axes)
    generator = torch.Generator().manual_seed(seed)
    slope = torch.randn(num_axes, generator=generator)
    grid = torch.stack(torch.meshgrid(*[torch.arange(9.0)] * num_axes, indexing="ij"))
    x = (grid * slope.view(-1, *(1,) * num_axes)).sum(0).expand(shape)
    first, second = (some_warp(shape, 0.01, seed + at, bent=bent and at == 1) for at in (0, 1))
    if second.moved is not None:
        second = second._replace(moved=second.moved * 0.1)
    once = resampled(x, followed_by(first, second), nearest=False, border=True)
    twice = resampled(resampled(x, first, nearest=False, border=True), second, nearest=False, border=True)
    inner = (slice(None), slice(None), *(slice(3, 6),) * num_axes)
    torch.testing.assert_close(once[inner], twice[inner], rtol=1e-3, atol=2e-3)


def test_products_are_those_of_matrices() -> None:
    one, other = torch.randn(4, 3, 3), torch.randn(4, 3, 5)
    torch.testing.assert_close(product(one, other), one @ other)


@pytest.mark.parametrize("shape", [(5, 2, 12, 12), (6, 2, 3, 12, 12)])
def test_a_warp_of_another_batch_is_refused(shape: tuple[int, ...]) -> None:
    warp: Any = some_warp(SHAPES[0])
    with pytest.raises(AugmentError, match="wanted those drawn for this batch"):
        resampled(images(shape), warp, nearest=True, border=False)


def test_threads_share_the_rows_without_changing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    x, warp = images((1, 3, 31, 17)), some_warp((1, 3, 31, 17))
    alone = resampled(x, warp, nearest=False, border=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert resampled(x, warp, nearest=False, border=False).equal(alone)


@every_shape
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 1e38])
@pytest.mark.parametrize("where", [(0, 0), (1, 1), (1, -1), (0, -2)])
def test_no_matrix_leads_outside_of_memory(
    shape: tuple[int, ...], number: float, where: tuple[int, int]
) -> None:
    x, warp = images(shape) + 1.0, some_warp(shape)
    warp.matrix[:, where[0], where[1]] = number
    for nearest in (False, True):
        for border in (False, True):
            made = resampled(x, warp, nearest=nearest, border=border)
            assert ((made >= 0.0) & (made <= x.max() + 1e-4)).all()


@settings(max_examples=40, deadline=None)
@given(step=st.floats(-3e6, 3e6), middle=st.floats(0, 11), at=st.integers(0, 11))
def test_positions_that_are_rounded_a_lot_stay_inside(step: float, middle: float, at: int) -> None:
    """Large numbers that almost cancel each other: the sum is off by more than a value."""
    x, warp = images() + 1.0, still(torch.ones(6, dtype=torch.bool), (12, 12))._replace(is_exact=False)
    warp.matrix[:, 1, 1], warp.matrix[:, 1, 2] = step, middle - step * at
    for nearest in (False, True):
        made = resampled(
            x, warp._replace(active=torch.ones(6, dtype=torch.bool)), nearest=nearest, border=False
        )
        assert ((made >= 0.0) & (made <= x.max() + 1e-4)).all()


@every_shape
@pytest.mark.parametrize("bent", [False, True])
def test_what_lies_outside_is_zero_whatever_the_border_is(shape: tuple[int, ...], bent: bool) -> None:
    """Also where the nearest value of the border is no number."""
    x, warp = images(shape), some_warp(shape, bent=bent)
    warp.matrix[:, -1, -1] += 2.0 * shape[-1]
    for number in (float("nan"), float("inf")):
        x[..., -1] = number
        made = resampled(x, warp, nearest=False, border=False)
        assert made.isfinite().any()
        assert (made == 0.0).float().mean() > 0.3


@every_shape
def test_places_that_are_no_number_are_outside(shape: tuple[int, ...]) -> None:
    x, warp = images(shape) + 1.0, some_warp(shape)
    warp.matrix[0, 0, -1] = float("nan")
    assert (resampled(x, warp, nearest=False, border=False)[0] == 0.0).all()
    assert (resampled(x, warp, nearest=False, border=True)[0] > 0.0).any()


def test_channels_with_more_values_than_can_be_counted_go_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.augment import warp as module

    x, warp = images(), some_warp(SHAPES[0])
    wanted = by_torch(x, warp, monkeypatch, nearest=False, border=False)
    monkeypatch.setattr(module, "_MOST_VALUES", 12 * 12 - 1)
    assert resampled(x, warp, nearest=False, border=False).equal(wanted)
