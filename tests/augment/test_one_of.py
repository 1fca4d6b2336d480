"""Each sample goes through exactly one of the transforms, as often as the weights say."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tests.augment.cases import CASES, batch_keys, signals

from flatout.augment import GPUAmplitudeScale, GPUCompose, GPUPolarityInversion, OneOf
from flatout.augment.keys import SampleKeys
from flatout.augment.transform import Augmentation
from flatout.errors import AugmentError


def scales(*factors: float) -> list[GPUAmplitudeScale]:
    return [GPUAmplitudeScale((factor, factor), p=1.0) for factor in factors]


def test_each_sample_has_one_result() -> None:
    x, keys = signals(300), batch_keys(300)
    one_of = OneOf(scales(2.0, 3.0, 5.0))
    params = one_of.sample(x, keys)
    y = one_of(x, keys)
    assert one_of.apply(x, params).equal(y)
    factors = torch.tensor([2.0, 3.0, 5.0])[params.chosen]
    torch.testing.assert_close(y, x * factors[:, None, None])
    assert params.chosen.unique().tolist() == [0, 1, 2]


@pytest.mark.parametrize("weights", [None, (1, 1, 1), (3.0, 1.0, 0.0), (0, 0, 1)])
def test_choices_follow_the_weights(weights: Sequence[float] | None) -> None:
    num = 20_000
    chosen = OneOf(scales(1.0, 2.0, 3.0), weights).sample(torch.empty(num, 1, 4), batch_keys(num)).chosen
    shares = torch.bincount(chosen, minlength=3) / num
    wanted = torch.tensor(weights or (1.0, 1.0, 1.0))
    torch.testing.assert_close(shares, wanted / wanted.sum(), rtol=0, atol=0.015)
    assert (shares[wanted == 0] == 0).all()


def test_members_keep_their_probability() -> None:
    x = signals(2000, 1, 4)
    y = OneOf([GPUPolarityInversion(p=0.5)])(x, batch_keys(2000))
    assert 0.45 < (y == -x).all(-1).float().mean() < 0.55


def test_choice_and_parameters_are_independent() -> None:
    params = OneOf([CASES["amplitude_scale"](1.0), GPUCompose()]).sample(
        torch.empty(9000, 1, 4), batch_keys(9000)
    )
    both = torch.stack([params.chosen.float(), params.inner[0].factor])
    assert abs(torch.corrcoef(both)[0, 1].item()) < 4 / 9000**0.5


def test_eval_of_it_and_of_a_member() -> None:
    x, keys = signals(40), batch_keys(40)
    one_of = OneOf(scales(2.0, 3.0))
    chosen = one_of.sample(x, keys).chosen
    assert one_of.eval()(x, keys) is x
    one_of.train().transforms[1].eval()
    y = one_of(x, keys)
    assert y[chosen == 1].equal(x[chosen == 1])
    assert y[chosen == 0].equal(x[chosen == 0] * 2)


@pytest.mark.parametrize("weights", [(1,), (1, -1), (0, 0)])
def test_impossible_weights_are_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(AugmentError, match="2 transforms with weights"):
        OneOf(scales(1.0, 2.0), weights)


def test_none_of_is_refused() -> None:
    with pytest.raises(AugmentError, match="0 transforms"):
        OneOf([])


def test_a_member_that_changes_the_shape_is_refused_by_name() -> None:
    class Halves(Augmentation):
        def draw(self, x: torch.Tensor, keys: SampleKeys) -> None:
            return None

        def change(self, x: torch.Tensor, params: None) -> torch.Tensor:
            return x[..., ::2]

    with pytest.raises(AugmentError, match=r"Halves made \(4, 1, 50\) of \(4, 1, 100\).*behind OneOf"):
        OneOf([GPUPolarityInversion(), Halves()])(torch.zeros(4, 1, 100), batch_keys(4))
