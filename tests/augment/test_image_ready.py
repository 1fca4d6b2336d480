"""The chain of images holds what `augmentation.images` names, with the config's defaults and nobody else's."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.augment.cases import batch_keys
from tests.augment.image_cases import images, label_masks

from flatout.augment import augment_from_config, get_gpu_image_transforms, image_transform
from flatout.augment.image_ready import IMAGE_CHAIN
from flatout.config import load_config
from flatout.config.image_augmentation import ImagesSection
from flatout.errors import AugmentError, ConfigError

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "augment.md").read_text(encoding="utf-8")
NEEDED = {"random_crop": {"size": [8, 8]}}
"""Settings that have no default."""
EVERYTHING = {name: NEEDED.get(name, {}) for name in IMAGE_CHAIN}


def section(**named: Any) -> Any:
    return load_config({"augmentation": {"images": named}}, environ={}).augmentation


def test_the_section_and_the_chain_name_the_same_in_one_order() -> None:
    assert list(IMAGE_CHAIN) == list(ImagesSection.model_fields)
    chain = get_gpu_image_transforms(section(**dict(reversed(EVERYTHING.items()))))
    assert [type(member) for member in chain] == list(IMAGE_CHAIN.values())


@pytest.mark.parametrize("name", IMAGE_CHAIN)
def test_constructors_have_the_defaults_of_the_config(name: str) -> None:
    own = getattr(section(**{name: NEEDED.get(name, {})}).images, name).model_dump()
    found = inspect.signature(IMAGE_CHAIN[name]).parameters
    assert set(found) == set(own)
    assert all(found[key].default == value for key, value in own.items() if key not in NEEDED.get(name, {}))


def test_the_page_has_every_key_with_its_class() -> None:
    rows = re.findall(r"`(\w+)` \| `(GPU\w+)` \|", PAGE.split("### From the config")[1].split("```")[0])
    assert dict(rows) == {name: kind.__name__ for name, kind in IMAGE_CHAIN.items()}


def test_settings_reach_the_transforms() -> None:
    given = {"flip": {"axes": [-2], "p": 1.0}, "affine": {"spacing": [2, 1], "padding": "border"}}
    whole = load_config({"augmentation": {"images": given}}, environ={})
    x, keys = images(), batch_keys(6)
    for config in (whole, whole.augmentation, {"images": given}):
        flip, affine = get_gpu_image_transforms(config)
        assert (flip.axes, flip.p) == ((-2,), 1.0)
        assert (affine.spacing, affine.padding, affine.p) == ((2.0, 1.0), "border", 0.5)
        assert get_gpu_image_transforms(config)(x, keys).equal(get_gpu_image_transforms(whole)(x, keys))


def test_all_movements_are_one_resampling(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, original = [], image_transform.resampled

    def count(*given: Any, **settings: Any) -> Any:
        calls.append(settings)
        return original(*given, **settings)

    monkeypatch.setattr(image_transform, "resampled", count)
    found = get_gpu_image_transforms({"images": EVERYTHING})(images(), batch_keys(6))
    assert found.shape == (6, 2, 8, 8)
    assert len(calls) == 1


def test_a_loaders_batch_is_augmented_with_its_masks() -> None:
    settings = {"seed": 3, "augmentation": {"images": {"flip": {"p": 1.0}, "noise": {"p": 1.0}}}}
    batch = {"scan": images(), "organ": label_masks(), "key": torch.arange(6)}
    kinds: Any = {"scan": "image", "organ": "mask"}
    assert augment_from_config(load_config(settings), kinds=kinds) is None
    augment = augment_from_config(load_config({**settings, "use_gpu_augment": True}), kinds=kinds)
    assert augment is not None
    found = augment(batch, 2)
    assert augment.seed == 3
    assert found["organ"].equal(batch["organ"].flip(-1))
    assert not found["scan"].equal(batch["scan"].flip(-1))
    torch.testing.assert_close(found["scan"], batch["scan"].flip(-1), rtol=0.5, atol=0.5)


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ConfigError, match="names no transform; give it some of flip, turn90"):
        get_gpu_image_transforms()
    with pytest.raises(ConfigError, match="flipp"):
        get_gpu_image_transforms({"images": {"flipp": {}}})
    with pytest.raises(ConfigError, match=r"images\.flip\.axes"):
        get_gpu_image_transforms({"images": {"flip": {"axes": [0]}}})
    with pytest.raises(ConfigError, match=r"images\.random_crop\.size"):
        get_gpu_image_transforms({"images": {"random_crop": {}}})
    with pytest.raises(ConfigError, match=r"images\.elastic\.max_fraction"):
        get_gpu_image_transforms({"images": {"elastic": {"max_fraction": 0.3}}})
    with pytest.raises(AugmentError, match="range: got"):
        get_gpu_image_transforms({"images": {"contrast": {"range": [1.2, 0.9]}}})
