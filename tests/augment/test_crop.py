"""Random crops: everywhere they fit, equally often, keyed by sample, and refused where they do not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.augment.cases import batch_keys
from tests.augment.image_cases import images
from tests.augment.test_distribution import is_even

from flatout.augment import GPURandomCrop, draw_keys
from flatout.errors import AugmentError


def test_all_windows_are_equally_likely() -> None:
    params = GPURandomCrop((5, 8)).sample(torch.empty(1).expand(20_000, 1, 9, 8), batch_keys(20_000))
    assert is_even(params.start[:, 0], 0, 4)
    assert (params.start[:, 1] == 0).all()


def test_eval_leaves_the_whole() -> None:
    x = images()
    assert GPURandomCrop((3, 3)).eval()(x) is x


@settings(max_examples=20, deadline=None)
@given(num=st.integers(1, 8), data=st.data())
def test_windows_do_not_depend_on_the_batch(num: int, data: Any) -> None:
    hashes = torch.tensor(data.draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=num, max_size=num)))
    chosen = torch.tensor(data.draw(st.lists(st.integers(0, num - 1), min_size=1, max_size=num)))
    x, crop = images((num, 2, 6, 9)), GPURandomCrop((4, 5))
    whole = crop(x, draw_keys(hashes, seed=1, epoch=0))
    assert whole.shape == (num, 2, 4, 5)
    assert crop(x[chosen], draw_keys(hashes[chosen], seed=1, epoch=0)).equal(whole[chosen])


@pytest.mark.parametrize("size", [(13, 4), (4, 13), (2, 4, 4)])
def test_windows_that_do_not_fit_are_refused(size: tuple[int, ...]) -> None:
    with pytest.raises(AugmentError, match=r"GPURandomCrop: got \(12, 12\) to cut"):
        GPURandomCrop(size)(images())


@pytest.mark.parametrize("size", [(), (3,), (3, 0), (1, 2, 3, 4)])
def test_impossible_sizes_are_refused(size: tuple[int, ...]) -> None:
    with pytest.raises(AugmentError, match="size: got"):
        GPURandomCrop(size)
