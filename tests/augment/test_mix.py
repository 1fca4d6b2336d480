"""MixUp and CutMix: shares, partners, boxes, and one rule for the labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.augment.cases import batch_keys, tensors
from tests.augment.image_cases import images, label_masks

from flatout.augment import CutMix, MixUp, draw_keys
from flatout.augment.beta import beta_quantiles, looked_up
from flatout.errors import AugmentError

SHAPES = [(6, 1, 30), (6, 3, 12, 10), (6, 1, 6, 8, 7)]
both = pytest.mark.parametrize("make", [MixUp, CutMix])


@pytest.mark.parametrize("alpha", [0.3, 0.4, 1.0, 2.5, 20.0])
def test_shares_follow_the_beta_distribution(alpha: float) -> None:
    x = torch.empty(1).expand(20_000, 1, 2, 2)
    shares = MixUp(alpha).sample(x, batch_keys(20_000)).share.double().numpy()
    assert scipy.stats.kstest(shares, scipy.stats.beta(alpha, alpha).cdf).statistic < 0.015


@pytest.mark.parametrize("alpha", [0.1, 0.4, 1.0, 3.0, 30.0])
def test_quantiles_are_those_of_scipy(alpha: float) -> None:
    at = np.linspace(0.01, 0.99, 50)
    found = looked_up(beta_quantiles(alpha), torch.from_numpy(at).float()).numpy()
    np.testing.assert_allclose(found, scipy.stats.beta(alpha, alpha).ppf(at), atol=2e-4)
    ends = looked_up(beta_quantiles(alpha), torch.tensor([0.0, 0.5, 1.0]))
    assert ends.tolist() == pytest.approx([0.0, 0.5, 1.0])


@both
@settings(max_examples=30, deadline=None)
@given(num=st.integers(1, 12), seed=st.integers(0, 1000))
def test_every_sample_has_another_as_its_partner(make: Any, num: int, seed: int) -> None:
    partner = make().sample(torch.zeros(num, 1, 4, 4), batch_keys(num, seed=seed)).partner
    assert sorted(partner.tolist()) == list(range(num))
    assert num == 1 or (partner != torch.arange(num)).all()


@both
@settings(max_examples=20, deadline=None)
@given(num=st.integers(1, 9), data=st.data())
def test_all_but_the_partner_is_keyed_by_sample(make: Any, num: int, data: Any) -> None:
    hashes = torch.tensor(data.draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=num, max_size=num)))
    chosen = torch.tensor(data.draw(st.lists(st.integers(0, num - 1), min_size=1, max_size=num)))
    x, mixing = images((num, 1, 8, 9)), make(p=0.6)
    whole = mixing.sample(x, draw_keys(hashes, seed=2, epoch=1))._asdict()
    part = mixing.sample(x[chosen], draw_keys(hashes[chosen], seed=2, epoch=1))._asdict()
    for name in set(whole) - {"partner"}:
        assert part[name].equal(whole[name][chosen])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mixup_averages(shape: tuple[int, ...]) -> None:
    x, mixing = images(shape), MixUp(alpha=1.0, p=0.7)
    params = mixing.sample(x, batch_keys(6))
    for at, found in enumerate(mixing.apply(x, params)):
        share = float(params.share[at])
        wanted = share * x[at] + (1 - share) * x[params.partner[at]] if params.active[at] else x[at]
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cutmix_pastes_a_box(shape: tuple[int, ...]) -> None:
    x, mixing = images(shape), CutMix(p=0.7)
    params = mixing.sample(x, batch_keys(6))
    found = mixing.apply(x, params)
    for at in range(6):
        box = tuple(
            slice(int(first), int(first) + int(width))
            for first, width in zip(params.start[at], params.width[at], strict=True)
        )
        wanted = x[at].clone()
        wanted[(slice(None), *box)] = x[params.partner[at]][(slice(None), *box)]
        assert found[at].equal(wanted)
        from_other = 1 - float((found[at] == x[at]).float().mean())
        assert float(params.share[at]) == pytest.approx(1 - from_other, abs=1e-6)


def test_boxes_of_cutmix_fit_and_take_the_share_drawn() -> None:
    x = torch.empty(1).expand(20_000, 1, 200, 300)
    params = CutMix(alpha=1.0).sample(x, batch_keys(20_000))
    assert (params.start >= 0).all()
    assert (params.start + params.width <= torch.tensor([200, 300])).all()
    assert scipy.stats.kstest(params.share.double().numpy(), "uniform").statistic < 0.02


def test_masks_are_cut_alike_and_never_averaged() -> None:
    mask, x = label_masks(), images()
    params = CutMix().sample(x, batch_keys(6))
    cut = CutMix().apply(mask, params)
    assert cut.dtype == torch.int64
    assert set(cut.unique().tolist()) <= {3, 40, 200}
    assert (cut == CutMix().apply(mask.float(), params)).all()
    with pytest.raises(AugmentError, match="CutMix mixes masks"):
        MixUp().apply(mask, MixUp().sample(x, batch_keys(6)))


@both
def test_labels_are_soft_and_in_proportion(make: Any) -> None:
    x, labels, mixing = images(), torch.tensor([0, 1, 2, 3, 1, 0]), make(p=0.8, num_classes=4)
    params = mixing.sample(x, batch_keys(6))
    found = mixing.mix_labels(labels, params)
    for at in range(6):
        wanted = torch.zeros(4)
        wanted[labels[at]] += params.share[at]
        wanted[labels[params.partner[at]]] += 1 - params.share[at]
        torch.testing.assert_close(found[at], wanted)
    torch.testing.assert_close(found.sum(1), torch.ones(6))
    one_hot = F.one_hot(labels, 4).float()
    torch.testing.assert_close(make().mix_labels(one_hot, params), found)
    soft = torch.softmax(torch.randn(6, 4), 1)
    torch.testing.assert_close(make().mix_labels(soft, params).sum(1), torch.ones(6))
    loss = F.cross_entropy(torch.randn(6, 4, requires_grad=True), found)
    assert loss.requires_grad


@both
def test_forward_mixes_both(make: Any) -> None:
    x, labels, keys, mixing = images(), torch.arange(6) % 3, batch_keys(6), make(num_classes=3)
    params = mixing.sample(x, keys)
    mixed, soft = mixing(x, labels, keys)
    assert mixed.equal(mixing.apply(x, params))
    assert soft.equal(mixing.mix_labels(labels, params))
    assert mixing.eval()(x, labels, keys) == (x, labels)
    assert not mixed.equal(x)


@both
def test_a_batch_of_one_is_left_alone(make: Any) -> None:
    x = images((1, 2, 8, 8))
    mixed, soft = make(num_classes=3)(x, torch.tensor([1]), batch_keys(1))
    torch.testing.assert_close(mixed, x)
    torch.testing.assert_close(soft, torch.tensor([[0.0, 1.0, 0.0]]))


@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.uint8, torch.float64])
def test_other_dtypes(make: Any, dtype: torch.dtype) -> None:
    x = (images() * 90).to(dtype)
    found = make()(x, torch.eye(6), batch_keys(6))[0]
    wanted = make()(x.float(), torch.eye(6), batch_keys(6))[0]
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), wanted, rtol=1e-2, atol=0.51 if dtype == torch.uint8 else 1e-2)


@both
def test_gradients_flow_to_both(make: Any) -> None:
    x = images((3, 1, 5, 5)).double().requires_grad_()
    params = make().sample(x, batch_keys(3))
    assert torch.autograd.gradcheck(lambda one: make().apply(one, params), (x,), fast_mode=True)


@both
def test_inactive_samples_are_untouched_bit_for_bit(make: Any) -> None:
    x = images((20, 1, 5, 5))
    x[3, 0, 0, 0] = float("nan")
    mixing = make(p=0.5)
    params = mixing.sample(x, batch_keys(20))
    left = ~params.active
    assert 3 < left.sum() < 17
    assert mixing.apply(x, params)[left].nan_to_num().equal(x[left].nan_to_num())
    assert mixing.mix_labels(torch.eye(20), params)[left].equal(torch.eye(20)[left])


@both
def test_wrong_labels_say_what_was_wanted(make: Any) -> None:
    x = images()
    with pytest.raises(AugmentError, match=r"num_classes=K"):
        make()(x, torch.zeros(6, dtype=torch.int64))
    with pytest.raises(AugmentError, match=r"wanted soft labels \(B, K\)"):
        make(num_classes=3)(x, torch.zeros(6, 3, dtype=torch.int64))
    with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        make(num_classes=3)(x, torch.full((6,), 3))
    with pytest.raises((RuntimeError, IndexError)):
        make(num_classes=3)(x, torch.zeros(5, dtype=torch.int64))


@both
def test_wrong_samples_keys_and_settings_are_refused(make: Any) -> None:
    with pytest.raises(AugmentError, match=r"wanted \(B, C, T\), \(B, C, H, W\) or"):
        make().sample(torch.zeros(4, 5))
    with pytest.raises(AugmentError, match="wanted draw_keys"):
        make().sample(images(), torch.arange(6))
    for alpha in (0.0, -1.0, float("nan"), 1000.0):
        with pytest.raises(AugmentError, match="alpha: got"):
            make(alpha)
    with pytest.raises(AugmentError, match="num_classes"):
        make(num_classes=0)


@both
def test_nothing_goes_into_checkpoints(make: Any) -> None:
    assert make().state_dict() == {}
    assert all(len(tensor) == 6 for tensor in tensors(make().sample(images(), batch_keys(6))))
    assert "alpha" in repr(make())
