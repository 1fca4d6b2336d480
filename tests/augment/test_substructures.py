"""Parts of samples: equal ones are copies that cover everything, bounded ones begin and end as asked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.augment.cases import signals

from flatout.augment import split_substructures_batch
from flatout.errors import AugmentError


def test_equal_parts_are_a_reshape_where_the_length_divides() -> None:
    x = signals(3, 2, 400)
    parts = split_substructures_batch(x)
    assert parts.shape == (3, 4, 2, 100)
    assert parts.equal(x.view(3, 2, 4, 100).transpose(1, 2))


@given(st.integers(1, 60), st.integers(1, 60))
def test_equal_parts_cover_everything_in_order(length: int, num_parts: int) -> None:
    if num_parts > length:
        num_parts, length = length, num_parts
    x = torch.arange(float(length)).expand(2, 1, -1)
    parts = split_substructures_batch(x, num_parts)
    assert parts.shape == (2, num_parts, 1, -(-length // num_parts))
    assert parts[0].flatten().unique().tolist() == list(range(length))
    assert (parts.diff(dim=-1) == 1).all()
    assert (parts[0, :, 0, 0].diff() >= 0).all()


@given(st.data(), st.integers(1, 5), st.integers(5, 50))
def test_bounded_parts_are_interpolated_from_end_to_end(
    data: st.DataObject, num_parts: int, length: int
) -> None:
    bounds = [
        sorted(data.draw(st.lists(st.integers(0, length), min_size=num_parts + 1, max_size=num_parts + 1)))
        for _ in range(3)
    ]
    x = signals(3, 2, length).double()
    parts = split_substructures_batch(x, num_parts, torch.tensor(bounds)).numpy()
    part_length = -(-length // num_parts)
    assert parts.shape == (3, num_parts, 2, part_length)
    for sample, number in np.ndindex(3, num_parts):
        start, end = bounds[sample][number : number + 2]
        piece = x[sample, :, start:end].numpy()
        if start == end:
            assert not parts[sample, number].any()
            continue
        places = np.linspace(0, end - start - 1, part_length) if part_length > 1 else np.zeros(1)
        wanted = [np.interp(places, np.arange(end - start), channel) for channel in piece]
        np.testing.assert_allclose(parts[sample, number], wanted, atol=1e-9)


def test_equal_boundaries_give_the_copies() -> None:
    x = signals(2, 1, 400)
    boundaries = torch.tensor([[0, 100, 200, 300, 400]] * 2, dtype=torch.int32)
    assert split_substructures_batch(x, 4, boundaries).equal(split_substructures_batch(x))


def test_boundaries_outside_are_held_within() -> None:
    x = signals(1, 1, 40)
    inside = split_substructures_batch(x, 2, torch.tensor([[0, 15, 40]]))
    assert split_substructures_batch(x, 2, torch.tensor([[-7, 15, 99]])).equal(inside)
    assert not split_substructures_batch(x, 2, torch.tensor([[50, 60, 99]])).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_kept(dtype: torch.dtype) -> None:
    x = signals(2, 1, 90)
    boundaries = torch.tensor([[0, 10, 55, 80, 90]] * 2)
    parts = split_substructures_batch(x.to(dtype), 4, boundaries)
    assert parts.dtype == dtype
    torch.testing.assert_close(parts.float(), split_substructures_batch(x, 4, boundaries), rtol=0.05, atol=0.05)


def test_gradients_flow() -> None:
    x = signals(2, 1, 40).double().requires_grad_()
    boundaries = torch.tensor([[0, 3, 17, 33, 40]] * 2)
    assert torch.autograd.gradcheck(lambda one: split_substructures_batch(one, 4, boundaries), (x,))
    assert torch.autograd.gradcheck(split_substructures_batch, (x,))


def test_what_does_not_fit_is_refused() -> None:
    x = signals(2, 1, 40)
    with pytest.raises(AugmentError, match=r"wanted \(B, C, T\)"):
        split_substructures_batch(x[0])
    with pytest.raises(AugmentError, match="num_substructures: got 0"):
        split_substructures_batch(x, 0)
    with pytest.raises(AugmentError, match="got 41, wanted at most the length, 40"):
        split_substructures_batch(x, 41)
    for wrong in (torch.zeros(2, 3).long(), torch.zeros(1, 5).long(), torch.zeros(2, 5)):
        with pytest.raises(AugmentError, match=r"boundaries: got .*wanted \(2, 5\)"):
            split_substructures_batch(x, 4, wrong)
