"""A loader's batch is augmented by its own keys and epoch; what is not augmented stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.augment.cases import CASES, signals

from flatout.augment import (
    BatchAugment,
    GPUCompose,
    GPUFlip,
    GPUHighPass,
    GPUImageCompose,
    augment_from_config,
    draw_keys,
    split_substructures_batch,
)
from flatout.config import load_config
from flatout.errors import AugmentError


def chain() -> GPUCompose:
    return GPUCompose([CASES[name](1.0) for name in ("time_shift", "amplitude_scale")])


def batch(num_samples: int = 6) -> dict[str, torch.Tensor]:
    keys = torch.arange(num_samples) * 977 - 3
    return {"signal": signals(num_samples), "label": torch.arange(num_samples), "key": keys}


def test_the_field_is_replaced() -> None:
    given = batch()
    before = dict(given)
    found = BatchAugment(chain(), seed=4)(given, 7)
    expected = chain()(given["signal"], draw_keys(given["key"], seed=4, epoch=7))
    assert list(found) == ["signal", "label", "key"]
    assert torch.equal(found["signal"], expected)
    assert not torch.equal(expected, given["signal"])
    assert found["label"] is given["label"]
    assert given == before  # the batch itself is not changed


def test_views_stand_beside_the_field() -> None:
    given = batch()
    found = BatchAugment(chain(), "signal", seed=4, num_views=2, num_substructures=3)(given, 7)
    assert list(found) == [*given, "view1", "view2", "subs1", "subs2"]
    keys = draw_keys(given["key"], seed=4, epoch=7)
    for number in (1, 2):
        torch.testing.assert_close(found[f"view{number}"], chain()(given["signal"], keys.view(number - 1)))
        assert torch.equal(found[f"subs{number}"], split_substructures_batch(found[f"view{number}"], 3))
    assert found["signal"] is given["signal"]


@pytest.mark.parametrize("num_views", [0, 2])
def test_what_is_drawn_follows_the_sample_not_its_batch(num_views: int) -> None:
    augment = BatchAugment(chain(), seed=1, num_views=num_views)
    name = "view2" if num_views else "signal"
    whole = augment(batch(), 3)[name]
    part = augment({field: value[[4, 1]] for field, value in batch().items()}, 3)[name]
    torch.testing.assert_close(part, whole[[4, 1]])
    assert not torch.isclose(augment(batch(), 4)[name], whole).flatten(1).all(1).any()


def test_in_eval_nothing_is_changed() -> None:
    given = batch()
    assert BatchAugment(chain()).eval()(given, 0)["signal"] is given["signal"]
    assert BatchAugment(chain(), num_views=2).eval()(given, 0)["view2"] is given["signal"]


def test_what_cannot_be_augmented_is_told() -> None:
    given = batch()
    with pytest.raises(AugmentError, match="no 'key'"):
        BatchAugment(chain())({"signal": given["signal"]}, 0)
    with pytest.raises(AugmentError, match="no field 'sound'"):
        BatchAugment(chain(), "sound")(given, 0)
    with pytest.raises(AugmentError, match="several: signal, other"):
        BatchAugment(chain())({**given, "other": given["signal"]}, 0)
    with pytest.raises(AugmentError, match="none among: label, key"):
        BatchAugment(chain())({"label": given["label"], "key": given["key"]}, 0)
    assert set(BatchAugment(chain())({**given, "names": ["a"] * 6}, 0)) == {*given, "names"}  # type: ignore[dict-item]
    with pytest.raises(AugmentError, match="needs num_views"):
        BatchAugment(chain(), num_substructures=4)


def test_the_config_decides() -> None:
    assert augment_from_config(load_config({"use_gpu_augment": False})) is None
    settings = {"seed": 9, "use_gpu_augment": True, "augmentation": {"time_shift": {"p": 0.25}}}
    one = augment_from_config(load_config(settings))
    several = augment_from_config(load_config(settings), num_views=2, num_substructures=4, field="signal")
    assert one is not None
    assert several is not None
    assert (one.seed, one.num_views, several.num_views, several.field) == (9, 0, 2, "signal")
    names = [type(member).__name__ for member in one.transform.members]  # type: ignore[operator, union-attr]
    assert "GPUTimeStretch" not in names  # it can change what a label stands for
    pretraining = several.transform.transform.members  # type: ignore[union-attr]
    assert "GPUTimeStretch" in [type(member).__name__ for member in pretraining]  # type: ignore[operator, union-attr]


def test_settings_in_hz_are_meant_at_the_rate_of_the_signal() -> None:
    def rate(field: str | None = None, **settings: Any) -> int:
        given = {"use_gpu_augment": True, **settings}
        given["augmentation"] = {"high_pass": {}, **settings.get("augmentation", {})}
        made = augment_from_config(load_config(given, environ={}), field=field)
        assert made is not None
        (found,) = [each for each in made.transform.modules() if isinstance(each, GPUHighPass)]
        return found.sample_rate

    signal, other = {"kind": "signal", "rate": 4000}, {"kind": "signal", "rate": 2000}
    assert rate() == 5000
    assert rate(fields={"pcg": signal, "label": {"kind": "label"}}) == 4000
    assert rate("ecg", fields={"pcg": signal, "ecg": other}) == 2000
    assert rate("ecg", fields={"pcg": signal}) == 5000
    assert rate(fields={"pcg": signal}, augmentation={"sample_rate": 1000}) == 1000


def test_images_and_their_masks_go_together() -> None:
    image = torch.arange(2 * 16.0).view(2, 1, 4, 4)
    given = {"ct": image, "mask": image.to(torch.int64), "key": torch.tensor([3, 4])}
    flip = GPUImageCompose([GPUFlip(p=0.5)], {"ct": "image", "mask": "mask"})
    augment = BatchAugment(flip, seed=2)
    found = [augment(given, epoch) for epoch in range(6)]
    for batch in found:
        assert torch.equal(batch["ct"], batch["mask"].float())
        assert batch["key"] is given["key"]
    assert {batch["ct"].flatten().tolist() == image.flatten().tolist() for batch in found} == {True, False}
    views = BatchAugment(GPUFlip(p=1.0), "ct", num_views=2)(given, 0)
    assert torch.equal(views["view2"], image.flip(-1))
    with pytest.raises(AugmentError, match="by their kinds"):
        BatchAugment(flip, num_views=2)
