"""Chains of images: one draw for all fields, one resampling for what moves, and the same as step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.augment.cases import CASES, batch_keys, tensors
from tests.augment.image_cases import IMAGE_CASES, SHAPES, images, label_masks

from flatout.augment import (
    BatchAugment,
    GPUAffine,
    GPUAugmentationWrapper,
    GPUBlur,
    GPUBrightness,
    GPUCompose,
    GPUContrast,
    GPUCutout,
    GPUElastic,
    GPUFlip,
    GPUImageCompose,
    GPUImageNoise,
    GPURandomCrop,
    GPUTurn90,
    OneOf,
    draw_keys,
    image_transform,
)
from flatout.errors import AugmentError

KINDS: Any = {"image": "image", "label": "mask", "distance": "distance"}
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=["image", "volume"])


def moving(shape: tuple[int, ...], p: float = 0.8) -> list[Any]:
    """A movement of each kind; the affine one shifts by whole values, so that no step interpolates."""
    crop = GPURandomCrop([length - 2 for length in shape[2:]])
    return [GPUFlip((-1, -2), p=p), GPUTurn90(p=p), crop, GPUFlip(p=p)]


def fields(shape: tuple[int, ...] = SHAPES[0]) -> dict[str, Any]:
    batch = {"image": images(shape), "label": label_masks(shape), "distance": images(shape, seed=4)}
    return batch | {"key": torch.arange(shape[0]), "name": ["a"] * shape[0]}


def one_by_one(chain: GPUImageCompose, x: torch.Tensor, params: Any, kind: Any = "image") -> torch.Tensor:
    for member, own in zip(chain, params, strict=True):
        x = (
            member.apply(x, own, kind)
            if isinstance(member, image_transform.ImageTransform)
            else member.change(x, own)
        )
    return x


@pytest.fixture
def num_resampled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts resamplings."""
    counted = [0]
    original = image_transform.resampled

    def count(*arguments: Any, **settings: Any) -> Any:
        counted[0] += 1
        return original(*arguments, **settings)

    monkeypatch.setattr(image_transform, "resampled", count)
    return counted


@every_shape
@pytest.mark.parametrize("kind", ["image", "mask", "distance"])
def test_whole_movements_fused_are_exact(shape: tuple[int, ...], kind: Any, num_resampled: list[int]) -> None:
    chain, x = GPUImageCompose(moving(shape)), images(shape)
    params = chain.sample(x, batch_keys(shape[0]))
    fused = chain.apply(x, params, kind)
    assert num_resampled == [1]
    assert fused.equal(one_by_one(chain, x, params, kind))
    assert fused.shape[2:] == tuple(length - 2 for length in shape[2:])


@every_shape
@pytest.mark.parametrize("needs_gradient", [False, True], ids=["kernel", "torch"])
def test_a_flip_and_an_affine_map_are_one_resampling(
    shape: tuple[int, ...], needs_gradient: bool, num_resampled: list[int]
) -> None:
    x = images(shape).requires_grad_(needs_gradient)
    chain = GPUImageCompose([GPUFlip((-1, -2)), GPUAffine(p=0.6), GPUTurn90()])
    params = chain.sample(x, batch_keys(shape[0]))
    fused = chain.apply(x, params)
    assert num_resampled == [1]
    torch.testing.assert_close(fused, one_by_one(chain, x, params), rtol=1e-4, atol=1e-4)
    left = ~params[1].active
    assert left.any()
    assert fused[left].equal(one_by_one(chain, x, params)[left])  # these are not interpolated


@pytest.mark.parametrize(
    ("members", "num"),
    [
        ([GPUFlip(), GPUAffine(), GPUElastic()], 1),
        ([GPUElastic(), GPUFlip()], 2),
        ([GPUAffine(), GPUAffine(padding="border")], 2),
        ([GPUAffine(padding="border"), GPUFlip(), GPUAffine(padding="border")], 1),
        ([GPUFlip(), GPUBlur(), GPUFlip()], 2),
        ([GPUFlip(p=0.0), GPUBlur(), GPUFlip()], 1),
        ([GPUBlur()], 0),
        ([], 0),
    ],
    ids=lambda value: (
        str(value) if isinstance(value, int) else "+".join(type(one).__name__[3:] for one in value)
    ),
)
def test_as_few_resamplings_as_can_be(members: list[Any], num: int, num_resampled: list[int]) -> None:
    GPUImageCompose(members)(images(), batch_keys(6))
    assert num_resampled == [num]


def test_masks_are_resampled_once_whatever_lies_between(num_resampled: list[int]) -> None:
    chain = GPUImageCompose([GPUFlip(), GPUBlur(), GPUAffine(), GPUImageNoise(), GPUTurn90()])
    params = chain.sample(images(), batch_keys(6))
    chain.apply(label_masks(), params, "mask")
    assert num_resampled == [1]


def test_an_affine_map_then_an_elastic_one() -> None:
    """Of a ramp, which interpolation leaves a ramp; zeros from outside are left out."""
    x = torch.arange(32.0).expand(6, 1, 32, 32)
    chain = GPUImageCompose([GPUAffine(p=1.0, padding="border"), GPUElastic(p=1.0, padding="border")])
    params = chain.sample(x, batch_keys(6))
    inner = (..., slice(10, 22), slice(10, 22))
    torch.testing.assert_close(
        chain.apply(x, params)[inner], one_by_one(chain, x, params)[inner], rtol=1e-3, atol=2e-2
    )


@every_shape
def test_a_whole_chain_is_its_members_one_by_one(shape: tuple[int, ...]) -> None:
    values = [GPUBrightness(p=0.7), GPUContrast(p=0.7), GPUImageNoise(p=0.7), GPUCutout(p=0.7), GPUBlur(p=0.5)]
    chain, x = GPUImageCompose([*moving(shape), *values]), images(shape)
    before = x.clone()
    params = chain.sample(x, batch_keys(shape[0]))
    torch.testing.assert_close(chain.apply(x, params), one_by_one(chain, x, params), rtol=1e-5, atol=1e-5)
    assert x.equal(before)


@pytest.mark.parametrize("name", ["brightness", "contrast", "noise", "cutout", "gamma", "blur"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.float16])
def test_the_batch_itself_is_never_overwritten(name: str, dtype: torch.dtype) -> None:
    x = (images() * 90).to(dtype)
    before = x.clone()
    chain = GPUImageCompose([IMAGE_CASES[name](1.0), IMAGE_CASES[name](1.0)])
    assert not chain(x, batch_keys(6)).equal(before)
    assert x.equal(before)


def test_nor_is_it_after_a_transform_that_hands_it_on() -> None:
    class Idle(image_transform.Intensity):
        def choose(self, x: Any, draws: Any, active: Any) -> Any:
            return (active,)

        def alter(self, x: Any, params: Any, may_overwrite: bool = False) -> Any:
            return x

    x = images()
    before = x.clone()
    assert not GPUImageCompose([Idle(p=1.0), GPUBrightness(p=1.0)])(x, batch_keys(6)).equal(before)
    assert x.equal(before)


@every_shape
def test_fields_share_one_draw(shape: tuple[int, ...]) -> None:
    batch = fields(shape)
    chain = GPUImageCompose([GPUFlip(), GPUAffine(p=0.8), GPUBrightness(), GPUImageNoise()], KINDS)
    keys = batch_keys(shape[0])
    found = chain(batch, keys)
    params = chain.sample(batch, keys)
    for name, kind in KINDS.items():
        assert found[name].equal(chain.apply(batch[name], params, kind))
        assert not found[name].equal(batch[name])
    assert found["key"] is batch["key"]
    assert found["name"] is batch["name"]
    assert found is not batch
    assert set(found["label"].unique().tolist()) <= {0, 3, 40, 200}
    again = chain.apply(batch, params)
    assert all(again[name].equal(found[name]) for name in KINDS)


def test_fields_move_together_through_a_crop() -> None:
    batch = fields()
    batch["label"] = (batch["image"] * 1000).long()
    batch["distance"] = batch["image"].clone()
    found = GPUImageCompose([*moving(SHAPES[0])], KINDS)(batch, batch_keys(6))
    assert found["image"].shape == (6, 2, 10, 10)
    assert found["distance"].equal(found["image"])
    assert found["label"].equal((found["image"] * 1000).long())


@settings(max_examples=15, deadline=None)
@given(num=st.integers(1, 8), data=st.data())
def test_fields_do_not_depend_on_the_batch(num: int, data: Any) -> None:
    hashes = torch.tensor(data.draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=num, max_size=num)))
    chosen = torch.tensor(data.draw(st.lists(st.integers(0, num - 1), min_size=1, max_size=num)))
    chain = GPUImageCompose([GPUFlip(), GPURandomCrop((6, 6)), GPUAffine(), GPUElastic(), GPUCutout()], KINDS)
    batch = {name: one for name, one in fields((num, 1, 9, 9)).items() if name in KINDS}
    whole = chain(batch, draw_keys(hashes, seed=4, epoch=2))
    part = {name: one[chosen] for name, one in batch.items()}
    keys = draw_keys(hashes[chosen], seed=4, epoch=2)
    for ours, theirs in zip(
        tensors(chain.sample(part, keys)),
        tensors(chain.sample(batch, draw_keys(hashes, seed=4, epoch=2))),
        strict=True,
    ):
        assert ours.equal(theirs[chosen])
    found = chain(part, keys)
    assert all(found[name].equal(whole[name][chosen]) for name in KINDS)


def test_eval_leaves_the_batch() -> None:
    batch, chain = fields(), GPUImageCompose([GPUFlip(p=1.0)], KINDS)
    assert chain.eval()(batch) is batch
    assert chain.train()(batch) is not batch


def test_members_in_eval_are_left_out() -> None:
    x, chain = images(), GPUImageCompose([GPUFlip(p=1.0), GPUBrightness(p=1.0)])
    chain[0].eval()
    alone = GPUImageCompose([GPUFlip(p=0.0), GPUBrightness(p=1.0)])
    assert chain(x, batch_keys(6)).equal(alone(x, batch_keys(6)))


def test_a_choice_among_values_is_allowed_among_movements_not() -> None:
    x, choice = images(), OneOf([GPUBlur(p=1.0), GPUImageNoise(p=1.0)])
    chain = GPUImageCompose([GPUFlip(), choice], KINDS)
    batch = fields()
    assert not chain(batch, batch_keys(6))["image"].equal(x)
    params = chain.sample(x, batch_keys(6))
    assert chain.apply(x, params).equal(one_by_one(chain, x, params))
    with pytest.raises(AugmentError, match=r"OneOf with transforms of space.*masks could not follow"):
        GPUImageCompose([OneOf([GPUFlip(), GPUBlur()])])
    with pytest.raises(AugmentError, match="got a GPUTimeShift, wanted transforms of images"):
        GPUImageCompose([CASES["time_shift"](0.5)])


def test_choices_and_plain_chains_take_images() -> None:
    x, keys = images(SHAPES[1]), batch_keys(4)
    plain = GPUCompose([GPUFlip(), GPUAffine(), GPUBlur()])
    fused = GPUImageCompose([GPUFlip(), GPUAffine(), GPUBlur()])
    torch.testing.assert_close(plain(x, keys), fused(x, keys), rtol=1e-4, atol=1e-4)
    assert OneOf([GPUFlip(p=1.0), GPUTurn90(p=1.0)])(x, keys).shape == x.shape
    with pytest.raises(AugmentError, match=r"GPUCompose: got \(3, 4, 5\).*wanted \(B, C, H, W\)"):
        plain(torch.zeros(3, 4, 5))


def test_two_views_of_images() -> None:
    x, keys = images(), batch_keys(6)
    chain = GPUImageCompose([GPUFlip(), GPUAffine(), GPUImageNoise()])
    views = GPUAugmentationWrapper(chain, num_views=2)(x, keys)
    for number, view in enumerate(views):
        torch.testing.assert_close(view, chain(x, keys.view(number)), rtol=1e-5, atol=1e-6)


def test_an_empty_chain_is_the_identity() -> None:
    x = images()
    assert GPUImageCompose()(x) is x
    assert len(GPUImageCompose()) == 0


def test_half_precision_is_widened_once() -> None:
    x = images().half()
    chain = GPUImageCompose([GPUAffine(p=1.0), GPUContrast(p=1.0), GPUBrightness(p=1.0)])
    found = chain(x, batch_keys(6))
    assert found.dtype == torch.float16
    assert found.equal(chain(x.float(), batch_keys(6)).half())


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"label": None}, "wanted tensors for label too"),
        ({"label": torch.zeros(6, 144)}, r"label: got \(6, 144\).*wanted \(B, C, H, W\)"),
        ({"label": torch.zeros(6, 12, 11)}, "wanted the same for all fields"),
        ({"image": torch.zeros(6, 12, 12)}, r"image: got \(6, 12, 12\).*wanted \(B, C, H, W\)"),
        ({"label": torch.zeros(6, 1, 12, 11)}, "wanted the same for all fields"),
        ({"distance": torch.zeros(5, 1, 12, 12)}, "wanted the same for all fields"),
        ({"distance": torch.zeros(6, 1, 12, 12).long()}, "distance: got .* wanted .* of floating point"),
    ],
)
def test_fields_that_do_not_fit_are_named(change: dict[str, Any], match: str) -> None:
    with pytest.raises(AugmentError, match=match):
        GPUImageCompose([GPUFlip()], KINDS)(fields() | change)


def test_kinds_must_be_given_and_have_an_image() -> None:
    with pytest.raises(AugmentError, match="wanted kinds="):
        GPUImageCompose([GPUFlip()])(fields())
    with pytest.raises(AugmentError, match="at least one field of kind 'image'"):
        GPUImageCompose([GPUFlip()], {"label": "mask"})
    wrong: Any = {"image": "image", "label": "labels"}
    with pytest.raises(AugmentError, match="kind: got 'labels', wanted one of image, mask, distance"):
        GPUImageCompose([GPUFlip()], wrong)


@every_shape
def test_masks_and_distances_may_lack_the_channel(shape: tuple[int, ...]) -> None:
    batch, keys = fields(shape), batch_keys(shape[0])
    bare = batch | {"label": batch["label"][:, 0], "distance": batch["distance"][:, 0]}
    chain = GPUImageCompose([*moving(shape), GPUAffine(p=0.7), GPUImageNoise()], KINDS)
    wanted, found = chain(batch, keys), chain(bare, keys)
    assert found["image"].equal(wanted["image"])
    for name in ("label", "distance"):
        assert found[name].equal(wanted[name][:, 0])


def test_a_loader_hands_over_batch_and_epoch() -> None:
    batch = {name: one for name, one in fields().items() if name != "name"}
    chain = GPUImageCompose([GPUFlip(), GPUAffine(p=0.8), GPUImageNoise()], KINDS)
    found = BatchAugment(chain, seed=5)(batch, 3)
    wanted = chain(batch, draw_keys(batch["key"], seed=5, epoch=3))
    assert all(found[name].equal(wanted[name]) for name in KINDS)
    assert found["key"] is batch["key"]
    one_field = BatchAugment(GPUImageCompose([GPUFlip(p=1.0)]), "image")(batch, 0)
    assert not one_field["image"].equal(batch["image"])
    assert one_field["label"] is batch["label"]


@pytest.mark.parametrize("settings", [{"field": "image"}, {"num_views": 2}])
def test_fields_are_never_left_behind(settings: dict[str, Any]) -> None:
    """One field alone, or views of it, would leave the masks where they were."""
    with pytest.raises(AugmentError, match="knows its fields by their kinds"):
        BatchAugment(GPUImageCompose([GPUFlip()], KINDS), **settings)
