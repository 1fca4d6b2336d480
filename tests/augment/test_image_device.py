"""Nothing is fetched from the device, nothing made beside it: proved with fake tensors and whole graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.augment.cases import batch_keys
from tests.augment.image_cases import IMAGE_CASES, SHAPES, images, label_masks
from tests.augment.test_device import inductor
from torch._subclasses.fake_tensor import FakeTensorMode

from flatout.augment import CutMix, GPUImageCompose, GPURandomCrop, MixUp, OneOf, draw_keys


def chain() -> GPUImageCompose:
    moves = [IMAGE_CASES[name](0.5) for name in ("flip", "affine", "elastic")]
    values = [OneOf([IMAGE_CASES["blur"](1.0), IMAGE_CASES["noise"](0.5)]), IMAGE_CASES["contrast"](0.5)]
    return GPUImageCompose([*moves, GPURandomCrop((5, 7)), *values])


MAKERS: dict[str, Callable[[], Any]] = {
    name: lambda make=make: make(0.5) for name, make in IMAGE_CASES.items()
} | {"crop": lambda: GPURandomCrop((5, 7)), "chain": chain}
everything = pytest.mark.parametrize("name", MAKERS)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def shape_after(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:2], 5, 7) if name in ("crop", "chain") else shape


@everything
def test_runs_on_fake_tensors(name: str) -> None:
    """A fake tensor has no values: `.item()`, `if tensor:` or a boolean index would raise."""
    with FakeTensorMode() as mode:
        x, hashes = mode.from_tensor(images()), mode.from_tensor(torch.arange(6))
        found = MAKERS[name]()(x, draw_keys(hashes, seed=1, epoch=2))
    assert found.shape == shape_after(name, SHAPES[0])


@everything
def test_makes_every_tensor_where_the_batch_is(name: str) -> None:
    """On the meta device, which stands for all but the CPU: a tensor of the host beside it would raise."""
    x, hashes = images().to("meta"), torch.arange(6).to("meta")
    transform = MAKERS[name]().to("meta")
    for found in (transform(x, draw_keys(hashes, seed=1, epoch=2)), transform(x)):
        assert found.device.type == "meta"
        assert found.shape == shape_after(name, SHAPES[0])


@everything
def test_is_captured_as_one_graph(name: str) -> None:
    x, keys, transform = images(), batch_keys(6), MAKERS[name]()
    compiled = torch.compile(transform, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, keys), transform(x, keys), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["affine", "elastic", "blur", "cutout"])
def test_volumes_are_captured_too(name: str) -> None:
    x, keys, transform = images(SHAPES[1]), batch_keys(4), MAKERS[name]()
    compiled = torch.compile(transform, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, keys), transform(x, keys), rtol=1e-4, atol=1e-4)


def test_a_batch_of_fields_is_captured() -> None:
    kinds: Any = {"image": "image", "label": "mask", "distance": "distance"}
    transform = GPUImageCompose([IMAGE_CASES["flip"](0.5), IMAGE_CASES["affine"](0.5)], kinds)
    batch, keys = {"image": images(), "label": label_masks(), "distance": images(seed=2)}, batch_keys(6)
    compiled = torch.compile(transform, fullgraph=True, backend="eager")
    found, wanted = compiled(batch, keys), transform(batch, keys)
    for name in ("image", "distance"):
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-4)
    assert (found["label"] != wanted["label"]).float().mean() < 0.01


def test_a_new_epoch_compiles_nothing() -> None:
    x, transform = images(), GPUImageCompose([IMAGE_CASES["flip"](0.5), IMAGE_CASES["contrast"](0.5)])
    compiled = torch.compile(transform, fullgraph=True, backend="eager")
    compiled(x, batch_keys(6))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for epoch in range(1, 3):
            keys = batch_keys(6, epoch=epoch)
            torch.testing.assert_close(compiled(x, keys), transform(x, keys), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [MixUp, CutMix])
def test_mixing_fetches_nothing(make: Any) -> None:
    mixing = make(num_classes=5)
    x, labels, keys = images(), torch.arange(6) % 5, batch_keys(6)
    compiled = torch.compile(mixing, fullgraph=True, backend="eager")
    for found, wanted in zip(compiled(x, labels, keys), mixing(x, labels, keys), strict=True):
        torch.testing.assert_close(found, wanted)
    on_meta = mixing.to("meta")(x.to("meta"), labels.to("meta"))
    assert [one.device.type for one in on_meta] == ["meta", "meta"]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = make(num_classes=5)(mode.from_tensor(x), mode.from_tensor(labels))
    assert fake[1].shape == (6, 5)


@inductor
@pytest.mark.parametrize("name", ["affine", "elastic", "noise"])
def test_compiled_code_draws_the_same(name: str) -> None:
    x, keys, transform = images((8, 2, 12, 12)), batch_keys(8), MAKERS[name]()
    compiled = torch.compile(transform, fullgraph=True)
    torch.testing.assert_close(compiled(x, keys), transform(x, keys), rtol=1e-3, atol=1e-3)
