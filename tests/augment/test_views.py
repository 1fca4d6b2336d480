"""Views are drawn for their number, made in one pass, equal to what the transform gives for each alone."""

from __future__ import annotations

import pytest
import torch
from tests.augment.cases import CASES, batch_keys, signals
from torch import Tensor

from flatout.augment import GPUAugmentationWrapper, GPUCompose
from flatout.errors import AugmentError


class CountedChain(GPUCompose):
    """Remembers the batches it was given."""

    num_samples: tuple[int, ...] = ()

    def forward(self, x: Tensor, *args: object, **kwargs: object) -> Tensor:
        self.num_samples = (*self.num_samples, len(x))
        return super().forward(x, *args, **kwargs)  # type: ignore[arg-type]


def chain() -> CountedChain:
    return CountedChain([CASES[name](0.5) for name in ("time_stretch", "gaussian_noise", "amplitude_scale")])


@pytest.mark.parametrize("num_views", [1, 2, 5])
def test_views_are_those_of_their_numbers(num_views: int) -> None:
    x, keys = signals(7), batch_keys(7)
    wrapper = GPUAugmentationWrapper(chain(), num_views)
    views = wrapper(x, keys)
    assert len(views) == num_views
    assert wrapper.transform.num_samples == (7 * num_views,)  # one pass
    for number, view in enumerate(views):
        torch.testing.assert_close(view, chain()(x, keys.view(number)), rtol=1e-6, atol=1e-6)


def test_views_differ_and_repeat() -> None:
    x, keys = signals(7), batch_keys(7)
    first, second = GPUAugmentationWrapper(chain())(x, keys)
    assert not first.equal(second)
    again = GPUAugmentationWrapper(chain())(x, keys)
    assert first.equal(again[0])
    assert second.equal(again[1])


def test_without_keys_views_differ_too() -> None:
    first, second = GPUAugmentationWrapper(chain())(signals(7), generator=torch.Generator().manual_seed(1))
    assert not first.equal(second)


def test_eval_gives_the_batch_itself() -> None:
    x = signals(3)
    wrapper = GPUAugmentationWrapper(chain(), 3).eval()
    assert [view is x for view in wrapper(x)] == [True] * 3
    assert not wrapper.train()(x, batch_keys(3))[0].equal(x)
    assert wrapper.transform.training


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(AugmentError, match="num_views: got 0"):
        GPUAugmentationWrapper(chain(), 0)
    with pytest.raises(AugmentError, match=r"wanted \(B, C, T\)"):
        GPUAugmentationWrapper(chain())(torch.zeros(3, 9))
