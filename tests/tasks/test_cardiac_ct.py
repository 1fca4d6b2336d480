"""Cardiac CT: on balls that it makes, and (slow) on real brain scans: how large the labelled part is."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.generated_volumes import write_balls
from tests.tasks.pages import fences, follow

from flatout.cli.main import main
from flatout.config import load_config
from flatout.config.text import parse_yaml
from flatout.errors import ConfigError, LoaderError, TooManyBadError
from flatout.store import DataPreprocessor
from flatout.tasks.cardiac_ct import CardiacCT, CardiacModule
from flatout.train import TaskData, fit
from flatout.types import Array, FieldSpec

SIZE = (1, 18, 16, 14)
SPECS = {
    "image": FieldSpec("image", "volume", "float32", SIZE),
    "radius": FieldSpec("radius", "scalar", "float32", ()),
    "kind": FieldSpec("kind", "label", "int64", (), classes=("large", "small")),
}
VALUES = {"radius": np.array([1.0, 3.0, 5.0], np.float32), "kind": np.array([0, 1, 1])}


def config_of(manifest: Path, output: Path, **settings: Any) -> dict[str, Any]:
    return {
        "task": "cardiac_ct",
        "manifest": str(manifest),
        "preprocessed_data_dir": str(output / "store"),
        "output_dir": str(output / "runs"),
        "splits": {"stratify": "kind", "ratios": {"train": 0.5, "val": 0.25, "test": 0.25}},
        "batch_size": 4,
        "epochs": 1,
        "num_workers": 0,
        "learning_rate": 0.01,
        "precision": "32",
        "logger": [],
        "model": {"dim": 4},
        **settings,
    }


def data_of(fields: dict[str, FieldSpec] | None = None, **values: Any) -> TaskData:
    """What a run knows of data whose three splits are alike."""
    known: dict[str, Array] = {name: np.asarray(value) for name, value in {**VALUES, **values}.items()}
    return TaskData(fields or SPECS, {"train": 3, "val": 3}, values=lambda name, split: known[name])


def module_of(data: TaskData | None = None, **model: Any) -> CardiacModule:
    config = load_config({"task": "cardiac_ct", "model": {"dim": 4, **model}}, environ={})
    return CardiacModule(config, data or data_of())


def batch_of(num: int = 4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "image": torch.randn(num, *SIZE, generator=generator),
        "radius": torch.linspace(1, 5, num),
        "kind": torch.arange(num) % 2,
        "key": torch.arange(num),
    }


def test_two_steps_from_the_store_and_from_raw_files(tmp_path: Path) -> None:
    config = config_of(write_balls(tmp_path / "raw"), tmp_path)
    DataPreprocessor(config).run()
    options = {"limit_train_batches": 2}
    fast = fit(config, trainer_options=options)
    assert fast.is_fast
    assert {"val_loss", "val_kind_accuracy", "val_radius_mae", "test_radius_mae"} <= set(fast.metrics)
    slow = fit({**config, "use_fast_loader": False, "use_gpu_augment": True}, trainer_options=options)
    assert not slow.is_fast
    assert slow.metrics["val_loss"] == fast.metrics["val_loss"]
    single = fit({**config, "use_fast_loader": False}, trainer_options=options)
    assert single.metrics["val_loss"] != fast.metrics["val_loss"]


def test_one_volume_at_a_time(tmp_path: Path) -> None:
    """The guide's `debug` preset; the deepest stage has a single voxel, of which no batch has a deviation."""
    config = config_of(write_balls(tmp_path / "raw", 12), tmp_path, preset="debug", num_workers=0)
    del config["batch_size"]
    result = fit(config, trainer_options={"limit_train_batches": 2, "limit_val_batches": 1})
    assert result.speed.num_steps == 2


def test_the_guides_own_config_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_balls(tmp_path / "raw", 12)
    moved = table.rename(tmp_path / "data.csv")
    guide = {
        "output_dir": str(tmp_path / "outputs"),
        "csv_path": str(moved),
        "base_path": str(tmp_path / "raw"),
        "epochs": 1,
        "batch_size": 8,
        "learning_rate": 1e-4,
        "num_workers": 0,
        "use_fast_loader": True,
        "preprocessed_data_dir": str(tmp_path / "fast"),
        "preprocess_batch_size": 16,
        "cache_config": {"enable_cache": True, "cache_size": 1000},
    }
    config = tmp_path / "config.json"
    config.write_text(json.dumps(guide))
    assert main(["prepare", "--config", str(config), "--set", "task=cardiac_ct"]) == 0
    options = ["--task", "cardiac_ct", "--use_fast_loader", "--set", "model.dim=4", "--json"]
    capsys.readouterr()
    assert main(["train", "--config", str(config), *options]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["is_fast"]
    assert "val_kind_accuracy" in shown["metrics"]


def test_heads_are_what_the_samples_have() -> None:
    label = {name: SPECS[name] for name in ("image", "kind")}
    number = {name: SPECS[name] for name in ("image", "radius")}
    batch = batch_of()
    assert set(module_of(data_of(label)).measure(batch)) == {"loss", "kind_accuracy"}
    assert set(module_of(data_of(number)).measure(batch)) == {"loss", "radius_mae"}
    assert set(module_of().measure(batch)) == {"loss", "kind_accuracy", "radius_mae"}


def test_numbers_are_by_sample() -> None:
    module, batch = module_of().eval(), batch_of()
    whole = module.measure(batch)
    assert {name: value.shape for name, value in whole.items()} == dict.fromkeys(whole, (4,))
    alone = module.measure({name: value[2:3] for name, value in batch.items()})
    for name, value in alone.items():
        torch.testing.assert_close(value, whole[name][2:3])


def test_numbers_are_measured_in_their_own_unit() -> None:
    """The mean of the train split is as good as nothing learned."""
    module, batch = module_of().eval(), batch_of()
    head = module.heads[0]
    assert (float(head.mean), float(head.deviation)) == (3.0, pytest.approx(np.std([1, 3, 5])))
    measured = head(torch.zeros(4, 1), batch)
    torch.testing.assert_close(measured["radius_mae"], (batch["radius"] - 3.0).abs())
    assert set(module.state_dict()) >= {"heads.0.mean", "heads.0.deviation"}


def test_nothing_is_learned_from_a_number_that_is_missing() -> None:
    module, batch = module_of(), batch_of()
    batch["radius"][1] = float("nan")
    measured = module.heads[0](torch.zeros(4, 1, requires_grad=True), batch)
    assert measured["loss"][1] == 0.0
    assert measured["radius_mae"][1].isnan()
    measured = module.measure(batch)
    measured["loss"].sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ({"num_layers": 10}, (18, 16, 14)),
        ({"num_layers": 18, "dropout": 0.5}, (20, 20, 20)),
        ({"num_layers": 50}, (16, 16, 16)),
        ({"network": "densenet"}, (29, 32, 40)),
        ({"params": {"conv1_t_size": 3, "norm": "batch"}}, (18, 16, 14)),
    ],
)
def test_networks(model: dict[str, Any], size: tuple[int, ...]) -> None:
    data = data_of({**SPECS, "image": FieldSpec("image", "volume", "float32", (2, *size))})
    module = module_of(data, **model)
    batch = {**batch_of(2), "image": torch.randn(2, 2, *size)}
    assert module.measure(batch)["loss"].shape == (2,)
    norms = {type(part).__name__ for part in module.modules() if "Norm" in type(part).__name__}
    assert norms == ({"BatchNorm3d"} if "params" in model else {"GroupNorm"})


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"num_layers": 12}, "model.num_layers is 12; a resnet has 10, 18"),
        ({"network": "densenet", "num_layers": 18}, "a densenet has 121"),
        ({"network": "densenet"}, "at least 29 voxels"),
        ({"params": {"wings": 2}}, r"model\.params.*'wings'"),
        ({"network": "unet"}, r"model\.network"),
    ],
)
def test_networks_that_are_not_there(model: dict[str, Any], told: str) -> None:
    data = data_of({**SPECS, "image": FieldSpec("image", "volume", "float32", (1, 30, 30, 30))})
    with pytest.raises(ConfigError, match=told):
        module_of(data if "num_layers" in model else None, **model)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"kind": [1, 1, 1]}, "label 'kind' has only class 'small' in the train split"),
        ({"kind": []}, "label 'kind' has no class"),
        ({"kind": [0, -1, 1]}, "class number -1; wanted 0 and up"),
        ({"kind": [7, 100200, 3]}, r"3 different numbers, up to 100,200.*fields\.kind\.classes"),
        ({"radius": [2.0, 2.0]}, "number 'radius' has the same value, 2, in every sample"),
        ({"radius": [float("nan")]}, "number 'radius' has no value"),
    ],
)
def test_targets_that_cannot_be_learned(values: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        module_of(data_of(**values))


def test_samples_that_do_not_do() -> None:
    with pytest.raises(ConfigError, match=r"neither: image \(volume\).*diagnosis"):
        module_of(data_of({"image": SPECS["image"]}))
    with pytest.raises(ConfigError, match="kind 'volume'; the samples have: kind"):
        module_of(data_of({"kind": SPECS["kind"]}))


def test_a_class_that_train_lacks_is_said(caplog: pytest.LogCaptureFixture) -> None:
    kinds = {"train": [0, 1], "val": [0, 2]}
    fields = {"image": SPECS["image"], "kind": FieldSpec("kind", "label", "int64", ())}
    data = TaskData(fields, {"train": 2, "val": 2}, values=lambda name, split: np.asarray(kinds[split]))
    assert module_of(data).heads[0].width == 3
    assert "split 'val' has classes that train lacks: 2" in caplog.text


def test_volumes_of_different_sizes_want_a_size(tmp_path: Path) -> None:
    config = config_of(write_balls(tmp_path / "raw", 12, sizes_differ=True), tmp_path)
    with pytest.raises(ConfigError, match=r"those of field 'image' differ. Give fields\.image\.size"):
        fit(config)
    sized = {**config, "fields": {"image": {"size": [16, 16, 16]}}}
    assert fit(sized, trainer_options={"limit_train_batches": 1}).speed.num_steps == 1


@pytest.mark.parametrize(("cell", "told"), [("", "missing label"), ("huge", "unknown class 'huge'")])
def test_a_row_with_a_wrong_label_is_named(tmp_path: Path, cell: str, told: str) -> None:
    table = write_balls(tmp_path / "raw", 12)
    lines = table.read_text().splitlines()
    lines[3] = ",".join([*lines[3].split(",")[:2], cell])
    table.write_text("\n".join(lines) + "\n")
    fields = {
        "image": {"kind": "volume", "column": "image_path"},
        "kind": {"kind": "label", "classes": ["large", "small"]},
    }
    config = config_of(table, tmp_path, fields=fields, splits={"ratios": {"train": 1.0}})
    with pytest.raises(LoaderError, match=rf"sample 'ball_002.*{told}.*flatout prepare"):
        fit({**config, "use_fast_loader": False})
    with pytest.raises(TooManyBadError):
        DataPreprocessor({**config, "max_bad_fraction": 0.01}).run()
    stats = DataPreprocessor(config).run()
    assert stats.num_samples == 11


def test_batches_are_varied_by_key_and_epoch() -> None:
    augment = CardiacCT().augmentation(load_config({"task": "cardiac_ct"}), data_of())
    batch = batch_of(32)
    made = augment(batch, 1)
    assert torch.equal(augment(batch, 1)["image"], made["image"])
    assert not torch.equal(augment(batch, 2)["image"], made["image"])
    alone = augment({name: value[5:6] for name, value in batch.items()}, 1)
    torch.testing.assert_close(alone["image"], made["image"][5:6])
    assert torch.equal(made["radius"], batch["radius"])
    changed = (made["image"] != batch["image"]).flatten(1).any(1)
    assert 24 <= int(changed.sum()) <= 32  # all four are left out for one in sixteen


def test_samples_are_varied_alike() -> None:
    made_here = CardiacCT().sample_transform(load_config({"task": "cardiac_ct"}), data_of())
    vary = pickle.loads(pickle.dumps(made_here))  # to a worker
    np.random.seed(0)
    sample = {name: value[0] for name, value in batch_of().items()}
    before = sample["image"].clone()
    made = [vary(sample) for _ in range(40)]
    assert torch.equal(sample["image"], before)
    assert all(one["image"].dtype == torch.float32 and one["image"].shape == SIZE for one in made)
    assert len({one["image"].numpy().tobytes() for one in made}) >= 30
    assert made[0]["radius"] is sample["radius"]


@pytest.mark.parametrize("settings", [CardiacCT.before, CardiacCT.after])
def test_the_guides_settings_are_settings(settings: dict[str, Any]) -> None:
    config = load_config({"task": "cardiac_ct"}, overrides=settings, environ={})
    for name, value in settings.items():
        found: Any = config
        for part in name.split("."):
            found = getattr(found, part)
        assert found == value


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_learns_the_radius(tmp_path: Path) -> None:
    config = config_of(write_balls(tmp_path / "raw", 120), tmp_path, epochs=12, model={"dim": 8})
    DataPreprocessor(config).run()
    metrics = fit(config).metrics
    assert metrics["test_radius_mae"] < 0.5  # radii from 2 to 6 are 1 away from their mean
    assert metrics["test_kind_accuracy"] > 0.8


def test_the_page_loads() -> None:
    config = load_config(parse_yaml(fences("cardiac_ct", "yaml")[0], "page")[0], environ={})
    assert (config.task, config.fields["image"].kind) == ("cardiac_ct", "auto")


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("is_fast", [True, False])
def test_it_learns_how_large_a_hippocampus_is(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_fast: bool
) -> None:
    """As docs/tasks/cardiac_ct.md says, from the store and from raw files."""
    monkeypatch.chdir(tmp_path)
    config = follow("cardiac_ct", tmp_path, data_dir / "mr_hippocampus") | {"use_fast_loader": is_fast}
    if is_fast:
        DataPreprocessor(config).run()
    metrics = fit(config).metrics
    assert metrics["test_is_large_accuracy"] > 0.6  # half of them are
    assert metrics["test_volume_ml_mae"] < 0.33  # who always says the mean is 0.37 ml off
