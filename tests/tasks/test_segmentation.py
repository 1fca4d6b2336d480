"""Segmentation: on discs that it makes, and (slow) on real cardiac MR divided by patient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.tasks.pages import fences, follow

from flatout.config import Config, load_config
from flatout.config.text import parse_yaml
from flatout.errors import ConfigError
from flatout.store import DataPreprocessor
from flatout.tasks.segmentation import (
    FlipBatch,
    FlipSample,
    Segmentation,
    SegmentationModule,
    _dice,
    _flip_on_device,
    _flip_on_host,
)
from flatout.train import TaskData, fit
from flatout.types import FieldSpec


def write_discs(folder: Path, num: int = 24, size: int = 20) -> Path:
    """Bright discs on noise, with their masks as 0 and 255."""
    folder.mkdir(parents=True)
    rows = ["image,mask,patient"]
    yy, xx = np.mgrid[:size, :size]
    for number in range(num):
        random = np.random.default_rng(number)
        centre, radius = random.uniform(6, size - 6, 2), random.uniform(3, 5)
        inside = (yy - centre[0]) ** 2 + (xx - centre[1]) ** 2 < radius**2
        picture = random.uniform(0, 90, (size, size)) + 130 * inside
        Image.fromarray(picture.astype(np.uint8)).save(folder / f"i{number}.png")
        Image.fromarray((inside * 255).astype(np.uint8)).save(folder / f"m{number}.png")
        rows.append(f"i{number}.png,m{number}.png,p{number // 2}")
    (folder / "rows.csv").write_text("\n".join(rows) + "\n")
    return folder / "rows.csv"


def config_of(manifest: Path, output: Path, **settings: Any) -> dict[str, Any]:
    return {
        "task": "segmentation",
        "manifest": str(manifest),
        "preprocessed_data_dir": str(output / "store"),
        "output_dir": str(output / "runs"),
        "fields": {"image": {"size": [20, 20]}},
        "splits": {"group": "patient", "ratios": {"train": 0.5, "val": 0.25, "test": 0.25}},
        "batch_size": 4,
        "epochs": 1,
        "num_workers": 0,
        "learning_rate": 0.01,
        "precision": "32",
        "logger": [],
        "model": {"dim": 4, "num_layers": 3},
        **settings,
    }


def test_two_steps_from_the_store_and_from_raw_files(tmp_path: Path) -> None:
    config = config_of(write_discs(tmp_path / "raw"), tmp_path)
    DataPreprocessor(config).run()
    options = {"limit_train_batches": 2}
    fast = fit(config, trainer_options=options)
    assert fast.is_fast
    assert {"val_loss", "val_dice", "test_dice"} <= set(fast.metrics)
    slow = fit({**config, "use_fast_loader": False, "use_gpu_augment": True}, trainer_options=options)
    assert slow.metrics["val_loss"] == fast.metrics["val_loss"]
    single = fit({**config, "use_fast_loader": False}, trainer_options=options)
    assert single.metrics["val_loss"] != fast.metrics["val_loss"]


@pytest.mark.parametrize(
    "preset",
    [
        "recommended",
        "max_performance",
        "memory_limited",
        "debug",
        "windows",
        "linux",
        "low_memory_gpu",
        "high_memory_gpu",
    ],
)
def test_each_preset_trains_a_step(tmp_path_factory: pytest.TempPathFactory, preset: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "presets"
    if not folder.exists():
        write_discs(folder / "raw")
        DataPreprocessor(config_of(folder / "raw" / "rows.csv", folder)).run()
    config = config_of(folder / "raw" / "rows.csv", folder, preset=preset)
    for key in ("batch_size", "num_workers", "precision"):
        config.pop(key)
    assert fit(config, trainer_options={"limit_train_batches": 1}).speed.num_steps == 1


SPECS = {
    "image": FieldSpec("image", "image", "float32", (1, 18, 22)),
    "mask": FieldSpec("mask", "mask", "uint8", (1, 18, 22)),
    "mask_distance": FieldSpec("mask_distance", "distance", "float32", (1, 18, 22)),
}


def batch_of(num: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(num, 1, 18, 22, generator=generator)
    mask = (image > 0.5).to(torch.uint8)
    return {"image": image, "mask": mask, "mask_distance": image.abs(), "key": torch.arange(num)}


def module_of(data: TaskData | None = None, **settings: Any) -> SegmentationModule:
    config: Config = load_config({"task": "segmentation", "model": {"dim": 4, "num_layers": 3}, **settings})
    return SegmentationModule(config, data or TaskData(SPECS))


def test_numbers_are_by_sample_and_of_any_size() -> None:
    """18 x 22 is no multiple of what the U-Net halves; a sample's numbers do not depend on its batch."""
    module, batch = module_of().eval(), batch_of()
    assert module.predict(batch["image"]).shape == (5, 2, 18, 22)
    whole = module.measure(batch)
    assert whole["loss"].shape == whole["dice"].shape == (5,)
    alone = module.measure({name: value[2:3] for name, value in batch.items()})
    torch.testing.assert_close(alone["loss"], whole["loss"][2:3])


def test_the_boundary_counts_more() -> None:
    module = module_of()
    logits = torch.zeros(1, 2, 1, 2)
    logits[0, 1, 0, 0] = 5.0  # wrong on the left, undecided on the right
    target = torch.zeros(1, 1, 2, dtype=torch.int64)
    near, far = torch.tensor([[[[0.0, 9.0]]]]), torch.tensor([[[[9.0, 0.0]]]])
    losses = [float(module._cross_entropy(logits, target, distance)) for distance in (near, None, far)]
    assert losses[0] > losses[1] > losses[2]


def test_dice() -> None:
    target = torch.tensor([[1, 1, 0, 0]] * 3 + [[0, 0, 0, 0]])
    found = torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
    torch.testing.assert_close(_dice(found, target), torch.tensor([1.0, 1 / 5, 3 / 4, 1.0]))


def test_scales_of_the_evaluation() -> None:
    module = module_of(eval_scales=[0.5, 1.0, 2.0]).eval()
    batch = batch_of()
    sizes: list[torch.Size] = []
    module.model.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].shape[2:]))
    assert module.measure(batch)["dice"].shape == (5,)
    assert [tuple(size) for size in sizes] == [(20, 24), (12, 12), (36, 44)]
    module.train()
    sizes.clear()
    module.measure(batch)
    assert len(sizes) == 1


def test_classes_and_sizes() -> None:
    values = {"fields": {"mask": {"values": {0: 0, 7: 1, 9: 2}}}}
    assert module_of(**values).predict(batch_of()["image"]).shape[1] == 3
    ragged = TaskData({**SPECS, "image": FieldSpec("image", "image", "float32", (1, None, None))})
    with pytest.raises(ConfigError, match=r"fields\.image\.size"):
        module_of(ragged)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"params": {"num_clases": 3}}, r"model\.params\.num_clases.*there are: num_classes, kernel_size"),
        ({"params": {"num_classes": "3"}}, "wanted a whole number, 2 or more"),
        ({"params": {"num_classes": 1}}, "wanted a whole number, 2 or more"),
        ({"num_layers": 1}, r"model\.num_layers is 1"),
    ],
)
def test_settings_that_do_not_do(model: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        module_of(model=model)


def test_settings_of_the_network_reach_it() -> None:
    params = {"norm": "batch", "num_classes": 4}
    module = module_of(model={"dim": 4, "num_layers": 3, "dropout": 0.3, "params": params})
    kinds = [type(part) for part in module.modules()]
    assert torch.nn.BatchNorm2d in kinds
    dropouts = [part for part in module.modules() if isinstance(part, torch.nn.Dropout | torch.nn.Dropout2d)]
    assert {part.p for part in dropouts} == {0.3}
    assert module.predict(batch_of()["image"]).shape[1] == 4


def test_flips_keep_image_and_mask_together() -> None:
    flip = Segmentation().augmentation(load_config({"task": "segmentation"}), TaskData(SPECS))
    batch = batch_of(64)
    flipped = flip(batch, 1)
    assert torch.equal(flip(batch, 1)["image"], flipped["image"])
    assert not torch.equal(flip(batch, 2)["image"], flipped["image"])
    assert torch.equal(flipped["mask"], (flipped["image"] > 0.5).to(torch.uint8))
    assert torch.equal(flipped["mask_distance"], flipped["image"].abs())
    ways = {(0,): 0, (-1,): 0, (-2,): 0, (-1, -2): 0}
    for one, other in zip(batch["image"], flipped["image"], strict=True):
        (way,) = [axes for axes in ways if torch.equal(one.flip(axes) if axes != (0,) else one, other)]
        ways[way] += 1
    assert all(8 <= count <= 24 for count in ways.values())
    assert isinstance(flip, FlipBatch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int64])
@pytest.mark.parametrize("num_axes", [2, 3])
def test_flips_on_the_host_are_those_on_a_device(dtype: torch.dtype, num_axes: int) -> None:
    generator = torch.Generator().manual_seed(num_axes)
    x = torch.rand((9, 2, 3, 4, 5)[: num_axes + 2], generator=generator).mul(100).to(dtype)
    active = torch.rand((num_axes, 9), generator=generator) < 0.5
    before = x.clone()
    flipped = _flip_on_host(x, active)
    assert flipped.dtype == dtype
    assert torch.equal(flipped, _flip_on_device(x, active))
    assert torch.equal(x, before)


def test_flips_of_one_sample_keep_image_and_mask_together() -> None:
    flip = Segmentation().sample_transform(load_config({"task": "segmentation"}), TaskData(SPECS))
    assert isinstance(flip, FlipSample)
    np.random.seed(0)
    sample = {name: value[0] for name, value in batch_of().items()}
    made = [flip(sample) for _ in range(20)]
    assert all(torch.equal(one["mask"], (one["image"] > 0.5).to(torch.uint8)) for one in made)
    assert len({one["image"].numpy().tobytes() for one in made}) == 4
    assert made[0]["key"] is sample["key"]


def test_the_page_loads() -> None:
    config = load_config(parse_yaml(fences("segmentation", "yaml")[0], "page")[0], environ={})
    assert (config.task, config.fields["image"].kind, config.splits.group) == (
        "segmentation",
        "image",
        "patient",
    )


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("is_fast", [True, False])
def test_it_learns_the_left_ventricle(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_fast: bool
) -> None:
    """As docs/tasks/segmentation.md says, from the store and from raw files."""
    monkeypatch.chdir(tmp_path)
    config = follow("segmentation", tmp_path, data_dir / "cmr_seg_sunnybrook") | {"use_fast_loader": is_fast}
    if is_fast:
        DataPreprocessor(config).run()
    assert fit(config).metrics["test_dice"] > 0.6  # a mask of the mean place and size scores below 0.3
