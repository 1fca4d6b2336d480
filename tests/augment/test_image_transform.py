"""Laws of every transform of images: shape, dtype, eval, probability, keys, gradients, one pass for all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.augment.cases import batch_keys, tensors
from tests.augment.image_cases import IMAGE_CASES, INTENSITY, SHAPES, SPATIAL, crop_for, images, label_masks
from tests.augment.test_transform import CountedCalls
from torch import Tensor, nn

from flatout.augment import GPUAffine, GPUBlur, GPUFlip, SampleKeys, draw_keys
from flatout.errors import AugmentError

LEVELLED = {"brightness", "contrast", "gamma", "noise"}
"""They measure the sample, and what they measure counts as a constant."""

EXACT = {"flip", "turn90"}

every_transform = pytest.mark.parametrize("name", IMAGE_CASES)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=["image", "volume"])


@every_transform
@pytest.mark.parametrize("shape", [*SHAPES, (1, 1, 7, 7), (2, 3, 1, 1), (1, 2, 1, 5, 5)], ids=str)
def test_shape_dtype_and_input_are_kept(name: str, shape: tuple[int, ...]) -> None:
    x = images(shape)
    before = x.clone()
    y = IMAGE_CASES[name](1.0)(x, batch_keys(shape[0]))
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert y.isfinite().all()
    assert x.equal(before)


@every_transform
def test_an_empty_batch_stays_empty(name: str) -> None:
    x = torch.zeros(0, *SHAPES[0][1:])
    assert IMAGE_CASES[name](0.5)(x, batch_keys(0)).shape == x.shape


@every_transform
@every_shape
def test_something_happens_to_each_sample(name: str, shape: tuple[int, ...]) -> None:
    x = images((16, *shape[1:]))
    changed = (IMAGE_CASES[name](1.0)(x, batch_keys(16)) != x).flatten(1).any(1)
    assert changed.all()


@every_transform
def test_eval_is_the_identity(name: str) -> None:
    x = images()
    transform = IMAGE_CASES[name](1.0).eval()
    assert transform(x) is x


@every_transform
@every_shape
@pytest.mark.parametrize("needs_gradient", [False, True], ids=["kernel", "torch"])
def test_inactive_samples_are_untouched_bit_for_bit(
    name: str, shape: tuple[int, ...], needs_gradient: bool
) -> None:
    x, transform, keys = images((40, *shape[1:])), IMAGE_CASES[name](0.2), batch_keys(40)
    active = transform.sample(x, keys).active
    assert 3 < active.sum() < 30
    left_alone = ~active
    one, other = left_alone.nonzero()[:2, 0].tolist()
    x[one].view(-1)[5] = float("nan")
    x[other].view(-1)[7] = float("inf")
    x.requires_grad_(needs_gradient)
    y = transform(x, keys)
    assert y[left_alone].nan_to_num().equal(x[left_alone].nan_to_num())


@every_transform
def test_probability_zero_leaves_all_alone(name: str) -> None:
    x = images()
    assert IMAGE_CASES[name](0.0)(x) is x
    assert not IMAGE_CASES[name](0.0).sample(x, batch_keys(6)).active.any()


@every_transform
@every_shape
def test_sample_then_apply_is_forward(name: str, shape: tuple[int, ...]) -> None:
    x, transform, keys = images(shape), IMAGE_CASES[name](0.7), batch_keys(shape[0])
    params = transform.sample(x, keys)
    assert transform.apply(x, params).equal(transform(x, keys))
    assert transform.eval().apply(x, params).equal(transform.train()(x, keys))
    assert all(len(tensor) == shape[0] for tensor in tensors(params))


@every_transform
@settings(max_examples=15)
@given(num=st.integers(1, 9), epoch=st.integers(0, 1000), is_volume=st.booleans(), data=st.data())
def test_parameters_do_not_depend_on_the_batch(
    name: str, num: int, epoch: int, is_volume: bool, data: Any
) -> None:
    """Any order, batch size, rank or resume point: a batch is some of the samples in some order."""
    transform = IMAGE_CASES[name](0.5)
    hashes = torch.tensor(data.draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=num, max_size=num)))
    chosen = torch.tensor(data.draw(st.lists(st.integers(0, num - 1), min_size=1, max_size=num)))
    x = images((num, 1, 4, 6, 6) if is_volume else (num, 2, 6, 6))
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
    x, transform = images((8, 2, 12, 12)), IMAGE_CASES[name](0.5)
    keys = batch_keys(8)
    results = [
        transform(x, k) for k in (keys.view(0), keys.view(1), batch_keys(8, epoch=1), batch_keys(8, seed=8))
    ]
    assert all(not one.equal(other) for at, one in enumerate(results) for other in results[:at])


@every_transform
def test_without_keys_a_generator_decides(name: str) -> None:
    x, transform = images((8, 2, 12, 12)), IMAGE_CASES[name](0.5)
    first = transform(x, generator=torch.Generator().manual_seed(1))
    assert first.equal(transform(x, generator=torch.Generator().manual_seed(1)))
    assert not first.equal(transform(x, generator=torch.Generator().manual_seed(2)))


@every_transform
def test_no_loop_over_samples(name: str) -> None:
    """As torch runs it; the compiled loops are one call."""
    num_calls = []
    for num_samples in (2, 32):
        x = images((num_samples, 1, 6, 6)).requires_grad_()
        keys, transform = batch_keys(num_samples), IMAGE_CASES[name](0.5)
        with CountedCalls() as counted:
            transform(x, keys)
        num_calls.append(counted.num_calls)
    assert 0 < num_calls[0] == num_calls[1]


@every_transform
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(name: str, dtype: torch.dtype) -> None:
    x, keys = images(), batch_keys(6)
    wanted = IMAGE_CASES[name](0.5)(x.to(dtype).float(), keys)
    found = IMAGE_CASES[name](0.5)(x.to(dtype), keys)
    assert found.dtype == dtype
    digits = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-4}[dtype]
    torch.testing.assert_close(found.float(), wanted, rtol=digits, atol=digits)


@every_transform
def test_bytes_are_worked_on_as_numbers_and_rounded(name: str) -> None:
    x, keys = (images() * 100).to(torch.uint8), batch_keys(6)
    found = IMAGE_CASES[name](0.7)(x, keys)
    assert found.dtype == torch.uint8
    wanted = IMAGE_CASES[name](0.7)(x.float(), keys).round().clamp(0, 255)
    assert found.float().equal(wanted)


@every_transform
@every_shape
@pytest.mark.parametrize("needs_gradient", [False, True], ids=["kernel", "torch"])
def test_autocast_changes_nothing(name: str, shape: tuple[int, ...], needs_gradient: bool) -> None:
    x, keys, transform = (
        images(shape).requires_grad_(needs_gradient),
        batch_keys(shape[0]),
        IMAGE_CASES[name](0.5),
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = transform(x, keys)
    assert inside.dtype == torch.float32
    assert inside.equal(transform(x, keys))


@every_transform
@every_shape
def test_layout_in_memory_does_not_count(name: str, shape: tuple[int, ...]) -> None:
    x, keys, transform = images(shape), batch_keys(shape[0]), IMAGE_CASES[name](1.0)
    channels_last = x.movedim(1, -1).contiguous().movedim(-1, 1)
    stepped = torch.stack([x, x], -1).flatten(-2)[..., ::2]
    mirrored = x.transpose(-1, -2).contiguous().transpose(-1, -2)
    for odd in (channels_last, stepped, mirrored):
        torch.testing.assert_close(transform(odd, keys), transform(x, keys), rtol=1e-5, atol=1e-6)


@every_transform
@every_shape
def test_with_and_without_compiled_loops_alike(name: str, shape: tuple[int, ...]) -> None:
    """A tensor that needs a gradient goes through torch, one that does not through the compiled loops."""
    x, keys, transform = images(shape), batch_keys(shape[0]), IMAGE_CASES[name](0.7)
    by_torch = transform(x.clone().requires_grad_(), keys)
    assert by_torch.requires_grad
    torch.testing.assert_close(transform(x, keys), by_torch.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", sorted(set(IMAGE_CASES) - LEVELLED))
@every_shape
def test_gradients_agree_with_finite_differences(name: str, shape: tuple[int, ...]) -> None:
    x = images((2, 1, *(5,) * (len(shape) - 2))).double().requires_grad_()
    transform = IMAGE_CASES[name](1.0)
    params = transform.sample(x, batch_keys(2))
    assert torch.autograd.gradcheck(lambda one: transform.apply(one, params), (x,), fast_mode=True)


@pytest.mark.parametrize("name", sorted(LEVELLED))
def test_what_is_measured_is_a_constant(name: str) -> None:
    """Then the gradient is the slope of the sample's curve: 1, or the factor of the contrast."""
    x = images().double().requires_grad_()
    transform = IMAGE_CASES[name](1.0)
    params = transform.sample(x, batch_keys(6))
    (gradient,) = torch.autograd.grad(transform.apply(x, params).sum(), x)
    assert gradient.isfinite().all()
    if name == "contrast":
        wanted = params.factor.double().view(-1, 1, 1, 1).expand_as(x)
        torch.testing.assert_close(gradient, wanted)
    elif name == "gamma":
        assert (gradient > 0).all()
    else:
        torch.testing.assert_close(gradient, torch.ones_like(x))


@every_transform
def test_a_flat_image_has_gradients_and_no_nan(name: str) -> None:
    x = torch.zeros(2, 1, 6, 6, requires_grad=True)
    y = IMAGE_CASES[name](1.0)(x, batch_keys(2))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert y.isfinite().all()
    assert gradient.isfinite().all()


@every_transform
@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(4, 100),
        torch.zeros(2, 1, 100),
        torch.zeros(2, 1, 9, 9).long(),
        torch.zeros(2, 0, 9, 9),
        torch.zeros(2, 1, 9, 0),
        torch.zeros(2, 1, 2, 9, 9, 9),
    ],
    ids=lambda wrong: f"{tuple(wrong.shape)}",
)
def test_wrong_shapes_name_the_expected_one(name: str, wrong: Tensor) -> None:
    transform = IMAGE_CASES[name](1.0)
    for call in (transform, transform.sample, lambda x: transform.apply(x, None)):
        with pytest.raises(
            AugmentError, match=rf"{type(transform).__name__}: got \(.*wanted \(B, C, H, W\) or"
        ):
            call(wrong)


def test_kinds_have_their_dtypes() -> None:
    flip = GPUFlip()
    with pytest.raises(AugmentError, match=r"wanted .* of floating point:"):
        flip.apply(label_masks(), None, "distance")
    with pytest.raises(AugmentError, match="kind: got 'label', wanted one of image, mask, distance"):
        flip.apply(images(), None, "label")


@pytest.mark.parametrize("name", INTENSITY)
def test_values_of_masks_and_distances_stay(name: str) -> None:
    transform, mask, distance = INTENSITY[name](1.0), label_masks(), images(seed=3)
    params = transform.sample(images(), batch_keys(6))
    assert transform.apply(mask, params, "mask") is mask
    assert transform.apply(distance, params, "distance") is distance


@pytest.mark.parametrize("name", SPATIAL)
def test_masks_move_as_images_do(name: str) -> None:
    """A picture of few large areas: image and mask agree away from the edges between them."""
    labels = torch.zeros(6, 1, 24, 24)
    labels[..., 6:18, 4:14] = 1.0
    labels[:, :, 10:, 14:] = 2.0
    transform = SPATIAL[name](1.0)
    params = transform.sample(labels, batch_keys(6))
    image, mask = transform.apply(labels, params), transform.apply(labels.to(torch.int64), params, "mask")
    is_flat = image == image.round()
    assert is_flat.float().mean() > 0.5
    assert (image.round()[is_flat] == mask[is_flat]).float().mean() > 0.97
    assert (mask != labels).any()


def test_keys_of_another_batch_are_refused() -> None:
    transform = GPUFlip(p=1.0)
    with pytest.raises(AugmentError, match=r"got \(3,\).*wanted \(4,\)"):
        transform(images((4, 1, 5, 5)), batch_keys(3))
    with pytest.raises(AugmentError, match="wanted draw_keys"):
        transform(images((4, 1, 5, 5)), torch.arange(4))
    with pytest.raises(AugmentError, match=r"torch.int32"):
        transform(images((4, 1, 5, 5)), SampleKeys(torch.arange(4, dtype=torch.int32)))


@pytest.mark.parametrize("name", IMAGE_CASES)
def test_parameters_of_another_batch_are_refused(name: str) -> None:
    transform = IMAGE_CASES[name](1.0)
    params = transform.sample(images((3, 2, 12, 12)), batch_keys(3))
    with pytest.raises((RuntimeError, AugmentError)):
        transform.apply(images((5, 2, 12, 12)), params)


@pytest.mark.parametrize("name", IMAGE_CASES)
def test_nothing_goes_into_checkpoints(name: str) -> None:
    assert IMAGE_CASES[name](0.5).state_dict() == {}
    assert list(IMAGE_CASES[name](0.5).parameters()) == []


def test_a_model_that_holds_one_can_be_initialised() -> None:
    seen: list[str] = []
    nn.Sequential(GPUFlip(), GPUBlur()).apply(lambda module: seen.append(type(module).__name__))
    assert seen == ["GPUFlip", "GPUBlur", "Sequential"]


def test_settings_are_printed() -> None:
    assert repr(GPUFlip((-2,), p=0.3)) == "GPUFlip(p=0.3, axes=(-2,))"
    assert "scale=(0.9, 1.1)" in repr(GPUAffine())
    assert "size=(10, 10)" in repr(crop_for(SHAPES[0]))
