"""Laws of every transform: shape, dtype, eval, probability, keys, gradients, one pass for all samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.augment.cases import CASES, LENGTH, batch_keys, signals, tensors
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from flatout.augment import GPUAmplitudeScale, GPUCompose, GPUTimeShift, SampleKeys, draw_keys
from flatout.errors import AugmentError

LEVELLED = {"gaussian_noise", "coloured_noise", "background_mix", "baseline_wander"}
"""They measure the sample to set their level, which counts as a constant."""

every_transform = pytest.mark.parametrize("name", CASES)


class CountedCalls(TorchDispatchMode):
    """Counts what torch is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_calls += 1
        return function(*args, **(kwargs or {}))


@every_transform
@pytest.mark.parametrize(
    "shape", [(5, 2, LENGTH), (1, 1, LENGTH), (3, 3, 97), (2, 1, 1), (2, 2, 2), (4, 1, 13)]
)
def test_shape_dtype_and_finiteness_are_kept(name: str, shape: tuple[int, int, int]) -> None:
    x = signals(*shape)
    before = x.clone()
    y = CASES[name](1.0)(x, batch_keys(shape[0]))
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    assert y.isfinite().all()
    assert torch.equal(x, before)


@every_transform
def test_an_empty_batch_stays_empty(name: str) -> None:
    x = torch.zeros(0, 2, LENGTH)
    assert CASES[name](0.5)(x, batch_keys(0)).shape == x.shape


@every_transform
def test_something_happens_to_each_sample(name: str) -> None:
    x = signals(16)
    changed = (CASES[name](1.0)(x, batch_keys(16)) != x).flatten(1).any(1)
    assert changed.sum() >= 15  # a shift may be 0


@every_transform
def test_eval_is_the_identity(name: str) -> None:
    x = signals(3)
    transform = CASES[name](1.0).eval()
    assert transform(x) is x
    assert torch.equal(transform.train()(x, batch_keys(3)), CASES[name](1.0)(x, batch_keys(3)))


@every_transform
def test_inactive_samples_are_untouched_bit_for_bit(name: str) -> None:
    x = signals(40)
    x[3, 0, 5] = float("nan")
    transform, keys = CASES[name](0.4), batch_keys(40)
    active = transform.sample(x, keys).active
    assert 5 < active.sum() < 30
    y = transform(x, keys)
    left_alone = ~active
    assert y[left_alone].nan_to_num().equal(x[left_alone].nan_to_num())
    full = CASES[name](1.0)(x, keys)
    assert y[active].nan_to_num().equal(full[active].nan_to_num())


@every_transform
def test_probability_zero_leaves_all_alone(name: str) -> None:
    x = signals(4)
    assert CASES[name](0.0)(x) is x
    assert not CASES[name](0.0).sample(x, batch_keys(4)).active.any()


@every_transform
def test_sample_then_apply_is_forward(name: str) -> None:
    x, transform, keys = signals(9), CASES[name](0.7), batch_keys(9)
    params = transform.sample(x, keys)
    assert transform.apply(x, params).equal(transform(x, keys))
    assert transform.eval().apply(x, params).equal(transform.train()(x, keys))
    assert all(len(tensor) == 9 for tensor in tensors(params))


@every_transform
@settings(max_examples=15)
@given(
    num=st.integers(1, 12),
    epoch=st.integers(0, 1000),
    data=st.data(),
)
def test_parameters_do_not_depend_on_the_batch(name: str, num: int, epoch: int, data: Any) -> None:
    """Any order, batch size, rank or resume point: a batch is some of the samples in some order."""
    transform = CASES[name](0.5)
    hashes = torch.tensor(data.draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=num, max_size=num)))
    chosen = torch.tensor(data.draw(st.lists(st.integers(0, num - 1), min_size=1, max_size=num)))
    x = signals(num, 1, 60)
    whole = transform.sample(x, draw_keys(hashes, seed=3, epoch=epoch))
    part_keys = draw_keys(hashes[chosen], seed=3, epoch=epoch)
    part = transform.sample(x[chosen], part_keys)
    for ours, theirs in zip(tensors(part), tensors(whole), strict=True):
        assert ours.equal(theirs[chosen])
    torch.testing.assert_close(
        transform.apply(x, whole)[chosen], transform(x[chosen], part_keys), rtol=1e-5, atol=1e-6
    )


@every_transform
def test_epochs_and_views_differ(name: str) -> None:
    x, transform = signals(8), CASES[name](0.5)
    keys = batch_keys(8)
    results = [
        transform(x, k) for k in (keys.view(0), keys.view(1), batch_keys(8, epoch=1), batch_keys(8, seed=8))
    ]
    assert all(not one.equal(other) for at, one in enumerate(results) for other in results[:at])


@every_transform
def test_without_keys_a_generator_decides(name: str) -> None:
    x, transform = signals(8), CASES[name](0.5)
    first = transform(x, generator=torch.Generator().manual_seed(1))
    assert first.equal(transform(x, generator=torch.Generator().manual_seed(1)))
    assert not first.equal(transform(x, generator=torch.Generator().manual_seed(2)))
    torch.manual_seed(5)
    from_default = transform(x)
    assert not from_default.equal(transform(x))
    torch.manual_seed(5)
    assert from_default.equal(transform(x))


@every_transform
def test_samples_of_a_batch_have_parameters_of_their_own(name: str) -> None:
    x = signals(1).expand(64, -1, -1)
    y = CASES[name](0.5)(x, batch_keys(64))
    num_kinds = len(y.flatten(1).unique(dim=0))
    assert num_kinds == 2 if name == "polarity_inversion" else num_kinds > 10


@every_transform
def test_no_loop_over_samples(name: str) -> None:
    num_calls = []
    for num_samples in (2, 64):
        x, keys, transform = signals(num_samples), batch_keys(num_samples), CASES[name](0.5)
        with CountedCalls() as counted:
            transform(x, keys)
        num_calls.append(counted.num_calls)
    assert 0 < num_calls[0] == num_calls[1]


@every_transform
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(name: str, dtype: torch.dtype) -> None:
    x, keys = signals(6), batch_keys(6)
    wanted = CASES[name](0.5)(x.to(dtype).float(), keys)
    found = CASES[name](0.5)(x.to(dtype), keys)
    assert found.dtype == dtype
    digits = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-5}[dtype]
    torch.testing.assert_close(found.float(), wanted, rtol=digits, atol=digits)


@every_transform
def test_autocast_changes_nothing(name: str) -> None:
    x, keys, transform = signals(4), batch_keys(4), CASES[name](0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = transform(x, keys)
    assert inside.dtype == torch.float32
    assert inside.equal(transform(x, keys))


@every_transform
def test_layout_in_memory_does_not_count(name: str) -> None:
    x, keys, transform = signals(4), batch_keys(4), CASES[name](1.0)
    turned = x.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    stepped = torch.stack([x, x], -1).flatten(2)[..., ::2]
    assert not turned.is_contiguous()
    assert not stepped.is_contiguous()
    for odd in (turned, stepped):
        torch.testing.assert_close(transform(odd, keys), transform(x, keys), rtol=1e-5, atol=1e-6)


@every_transform
def test_gradients_flow(name: str) -> None:
    """Every sample has some; the levels that noise is measured by count as constants."""
    x = signals(3, 1, 40).double().requires_grad_()
    transform = CASES[name](1.0)
    params = transform.sample(x, batch_keys(3))
    weights = torch.linspace(-1, 1, x.numel(), dtype=torch.float64).view_as(x)
    (gradient,) = torch.autograd.grad((transform.apply(x, params) * weights).sum(), x)
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0
    assert (gradient.flatten(1).abs().sum(1) > 0).all()


@pytest.mark.parametrize("name", sorted(LEVELLED))
def test_what_is_added_is_a_constant(name: str) -> None:
    x = signals(3, 1, 40).double().requires_grad_()
    weights = torch.linspace(-1, 1, x.numel(), dtype=torch.float64).view_as(x)
    (gradient,) = torch.autograd.grad((CASES[name](1.0)(x, batch_keys(3)) * weights).sum(), x)
    torch.testing.assert_close(gradient, weights)


@pytest.mark.parametrize("name", sorted(set(CASES) - LEVELLED))
def test_gradients_agree_with_finite_differences(name: str) -> None:
    x = signals(2, 1, 20).double().requires_grad_()
    transform = CASES[name](1.0)
    params = transform.sample(x, batch_keys(2))
    assert torch.autograd.gradcheck(lambda one: transform.apply(one, params), (x,))


@every_transform
def test_silence_has_gradients_and_no_nan(name: str) -> None:
    x = torch.zeros(2, 1, 50, requires_grad=True)
    y = CASES[name](1.0)(x, batch_keys(2))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert y.isfinite().all()
    assert gradient.isfinite().all()
    assert y.abs().max() == 0.0


@every_transform
@pytest.mark.parametrize(
    "wrong",
    [torch.zeros(4, 100), torch.zeros(2, 1, 4, 100), torch.zeros(2, 1, 9).long(), torch.zeros(2, 0, 9)],
)
def test_wrong_shapes_name_the_expected_one(name: str, wrong: Tensor) -> None:
    transform = CASES[name](1.0)
    for call in (transform, transform.sample, lambda x: transform.apply(x, None)):
        with pytest.raises(AugmentError, match=rf"{type(transform).__name__}: got \(.*wanted \(B, C, T\)"):
            call(wrong)


def test_keys_of_another_batch_are_refused() -> None:
    transform = GPUTimeShift(p=1.0)
    with pytest.raises(AugmentError, match=r"got \(3,\).*wanted \(4,\)"):
        transform(signals(4), batch_keys(3))
    with pytest.raises(AugmentError, match="wanted draw_keys"):
        transform(signals(4), torch.arange(4))
    with pytest.raises(AugmentError, match=r"torch.int32"):
        transform(signals(4), SampleKeys(torch.arange(4, dtype=torch.int32)))


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_impossible_probabilities_are_refused(p: float) -> None:
    with pytest.raises(AugmentError, match="p: got"):
        GPUTimeShift(p=p)


def test_a_model_that_holds_one_can_be_initialised() -> None:
    """nn.Module.apply walks through all children, which are asked to apply a function."""
    seen = []
    model = nn.Sequential(nn.Linear(3, 3), GPUCompose([GPUTimeShift(), GPUAmplitudeScale()]))
    model.apply(lambda module: seen.append(type(module).__name__))
    assert seen == ["Linear", "GPUTimeShift", "GPUAmplitudeScale", "ModuleList", "GPUCompose", "Sequential"]


def test_settings_are_printed() -> None:
    assert repr(GPUTimeShift(0.2, p=0.3)) == "GPUTimeShift(p=0.3, max_fraction=0.2)"
    assert "num_masks=2" in repr(CASES["time_mask"](0.5))


@every_transform
def test_nothing_goes_into_checkpoints(name: str) -> None:
    assert CASES[name](0.5).state_dict() == {}
    assert list(CASES[name](0.5).parameters()) == []
