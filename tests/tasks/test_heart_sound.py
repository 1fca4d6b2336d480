"""Heart sounds: every mode on both paths, the view bank, resume, wrong input; (slow) what it learns."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from tests.tasks.generated_hearts import CLASSES, LENGTH, config_of, write_hearts
from torch.utils.data import DataLoader

from flatout.bank import ViewBank, ViewDataset
from flatout.cli.main import main
from flatout.config import load_config, to_yaml
from flatout.errors import ConfigError, LoaderStateError, TrainError
from flatout.store import DataPreprocessor, StoreReader
from flatout.tasks.heart_labels import LabelModule
from flatout.tasks.heart_modules import PretrainModule
from flatout.tasks.heart_sound import HeartSound
from flatout.tasks.heart_views import SampleChange, SampleViews, pretrain_chain
from flatout.train import RunResult, TaskData, fit
from flatout.train.engine import quiet_lightning
from flatout.train.values import stored_values
from flatout.train.weights import read_weights
from flatout.types import FieldSpec

TWO_STEPS = {"limit_train_batches": 2}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with recordings and their store; runs go elsewhere."""
    folder = tmp_path_factory.mktemp("hearts")
    DataPreprocessor(config_of(write_hearts(folder / "raw"), folder)).run()
    return folder


@pytest.fixture
def config(prepared: Path, tmp_path: Path) -> dict[str, Any]:
    return {**config_of(prepared / "raw" / "rows.csv", prepared), "output_dir": str(tmp_path / "runs")}


class Seen(Callback):
    """Keeps every train batch."""

    def __init__(self) -> None:
        self.batches: list[dict[str, torch.Tensor]] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.batches.append(batch)


PATHS: dict[str, dict[str, Any]] = {
    "store": {},
    "raw files, device": {"use_fast_loader": False},
    "raw files, SciPy": {"use_fast_loader": False, "use_gpu_augment": False},
}


@pytest.mark.parametrize("mode", ["pretrain", "supervised"])
def test_two_steps_on_every_path(config: dict[str, Any], mode: str) -> None:
    results: dict[str, RunResult] = {}
    for name, settings in PATHS.items():
        seen = Seen()
        results[name] = fit({**config, "mode": mode, **settings}, trainer_options=TWO_STEPS, callbacks=[seen])
        num = len(seen.batches[0]["key"])
        shapes = {key: tuple(value.shape) for key, value in seen.batches[0].items()}
        wanted = {"signal": (num, 1, LENGTH), "label": (num,), "key": (num,)}
        if mode == "pretrain":
            wanted |= {f"view{n}": (num, 1, LENGTH) for n in (1, 2)}
            wanted |= {f"subs{n}": (num, 4, 1, LENGTH // 4) for n in (1, 2)}
        assert shapes == wanted, name
        assert len(seen.batches) == 2
    metrics = {name: result.metrics for name, result in results.items()}
    assert results["store"].is_fast
    assert not results["raw files, SciPy"].is_fast
    assert metrics["store"]["val_loss"] == metrics["raw files, device"]["val_loss"]
    assert metrics["store"]["val_loss"] != metrics["raw files, SciPy"]["val_loss"]
    more = {"retrieval", "part_retrieval"} if mode == "pretrain" else {"accuracy", "balanced_accuracy"}
    assert {f"{split}_{name}" for split in ("val", "test") for name in more} <= set(metrics["store"])


def test_finetuning_begins_with_what_was_learned(config: dict[str, Any]) -> None:
    first = fit({**config, "mode": "pretrain"}, trainer_options=TWO_STEPS)
    assert first.best_weights is not None
    tuned = {**config, "mode": "finetune", "pretrained": str(first.best_weights)}
    frozen = {"model": {**config["model"], "params": {"freeze_encoder": True}}}
    probed, free = fit({**tuned, **frozen}), fit(tuned)
    learned = {n: v for n, v in read_weights(first.best_weights).items() if ".encoder." in n}
    assert len(learned) == 8
    for result, stays in ((probed, True), (free, False)):
        assert result.weights is not None
        after = read_weights(result.weights)
        assert all(torch.equal(after[name], value) for name, value in learned.items()) == stays
        assert any("model.classifier.weight" in note for note in result.notes)
    again = fit({**tuned, "pretrained": str(first.last_checkpoint)}, trainer_options=TWO_STEPS)
    assert "val_balanced_accuracy" in again.metrics


def test_views_of_the_bank(config: dict[str, Any], prepared: Path) -> None:
    """Without augmentation on the device the views are SciPy's, made beforehand, two epochs the same."""
    settings = {**config, "use_gpu_augment": False, "view_cache_refresh_epochs": 2, "epochs": 3, "seed": 5}
    seen = Seen()
    result = fit(settings, callbacks=[seen])
    assert result.is_fast
    assert not [note for note in result.notes if "no effect" in note]
    assert result.speed.data_wait_share is not None
    assert result.speed.data_wait_share > 0.1  # those of epoch 2 are made while it waits
    store = StoreReader(prepared / "store")
    views: list[dict[int, torch.Tensor]] = []
    num_batches = len(seen.batches) // 3
    for epoch in range(3):
        batches = seen.batches[epoch * num_batches : (epoch + 1) * num_batches]
        pairs = [pair for b in batches for pair in zip(b["key"].tolist(), b["view1"], strict=True)]
        views.append(dict(pairs))
    assert len(views[0]) == len(store.positions("train"))
    assert all(torch.equal(views[0][key], views[1][key]) for key in views[0])
    assert not any(torch.equal(views[0][key], views[2][key]) for key in views[0])
    chain = pretrain_chain(load_config(settings), "signal")
    again = {"seed": 5, "view_cache_refresh_epochs": 2, "num_workers": 0, "background": False}
    with ViewBank(store, "train", transform=chain, **again) as bank:
        for batch in seen.batches[-2:]:
            made = bank({"key": batch["key"]}, 2)
            assert all(torch.equal(made[name], batch[name]) for name in ("view1", "view2", "subs1", "subs2"))


def test_the_bank_ends_with_its_run(config: dict[str, Any]) -> None:
    class Kept(Seen):
        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
            self.augmentation = trainer.datamodule.augmentation
            self.folder = self.augmentation.bank.folder
            assert self.folder.exists()

    seen = Kept()
    fit({**config, "use_gpu_augment": False}, callbacks=[seen], trainer_options=TWO_STEPS)
    assert not seen.folder.exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "pretrain"},
        {"mode": "pretrain", "use_gpu_augment": False, "view_cache_refresh_epochs": 2},
        {"mode": "supervised", "model": {"dim": 4, "num_layers": 2, "dropout": 0.5}},
    ],
    ids=["device", "bank", "labels"],
)
def test_resumed_runs_end_with_the_same_weights(config: dict[str, Any], settings: dict[str, Any]) -> None:
    config = {**config, **settings}
    whole, first = fit({**config, "epochs": 3}), fit({**config, "epochs": 1})
    rest = fit({**config, "epochs": 3}, resume=first.folder)
    assert whole.weights is not None
    assert rest.weights is not None
    wanted, got = read_weights(whole.weights), read_weights(rest.weights)
    assert wanted.keys() == got.keys()
    assert all(torch.equal(wanted[name], got[name]) for name in wanted)
    if settings["mode"] == "pretrain":
        other = {"view_cache_refresh_epochs": 3, "augmentation": {"time_mask": {"p": 0.1}}}
        with pytest.raises(LoaderStateError, match="augmentation"):
            fit({**config, "epochs": 4, **other}, resume=first.folder)


def test_from_the_command_line(config: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    options = ["train", "--config", str(file), "--json"]
    assert main([*options, "--mode", "pretrain"]) == 0
    weights = json.loads(capsys.readouterr().out)["best_weights"]
    assert main([*options, "--mode", "finetune", "--pretrained", weights]) == 0
    assert "test_balanced_accuracy" in json.loads(capsys.readouterr().out)["metrics"]
    assert main([*options, "--mode", "finetune"]) == 2
    assert "--pretrained" in json.loads(capsys.readouterr().out)["error"]["message"]
    assert main([*options, "--mode", "guess"]) == 2
    assert "supervised" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_its_settings_are_the_guides() -> None:
    before, after = HeartSound.before, HeartSound.after
    assert (before["batch_size"], before["num_workers"], before["cache_in_memory"]) == (64, 4, False)
    assert (after["num_workers"], after["prefetch_factor"], after["view_cache_refresh_epochs"]) == (8, 4, 5)
    assert [row["batch_size"] for row in HeartSound.further] == [128, 256]
    for row in (before, after, *HeartSound.further):
        load_config({"task": "heart_sound", **row})


SPECS = {
    "signal": FieldSpec("signal", "signal", "float32", (1, 64)),
    "label": FieldSpec("label", "label", "int64", (), classes=CLASSES),
}


def settings_of(**settings: Any) -> Any:
    return load_config({"task": "heart_sound", "model": {"dim": 4, "num_layers": 2}, **settings})


def batch_of(num: int = 6) -> dict[str, torch.Tensor]:
    signal = torch.randn(num, 1, 64, generator=torch.Generator().manual_seed(0))
    return {"signal": signal, "label": torch.arange(num) % 3, "key": torch.arange(num)}


def test_validation_sees_the_same_views_each_time() -> None:
    module = PretrainModule(settings_of(), TaskData(SPECS)).eval()
    first, again = module.measure(batch_of()), module.measure(batch_of())
    assert set(first) == {"loss", "retrieval", "part_retrieval"}
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = PretrainModule(settings_of(seed=1), TaskData(SPECS)).eval()
    other.load_state_dict(module.state_dict())
    assert not torch.equal(other.measure(batch_of())["loss"], first["loss"])


def test_a_label_does_not_depend_on_the_batch() -> None:
    module, batch = LabelModule(settings_of(), TaskData(SPECS)).eval(), batch_of()
    whole = module.measure(batch)
    alone = module.measure({name: value[2:3] for name, value in batch.items()})
    torch.testing.assert_close(alone["loss"], whole["loss"][2:3])


@pytest.mark.parametrize("kind", [PretrainModule, LabelModule])
def test_half_precision_and_odd_widths(kind: type[PretrainModule] | type[LabelModule]) -> None:
    module = kind(settings_of(model={"dim": 28, "num_layers": 2}), TaskData(SPECS)).eval()
    whole = module.measure(batch_of())["loss"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = module.measure(batch_of())["loss"]
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, whole, atol=0.1, rtol=0.05)


def test_both_trainings_have_one_encoder() -> None:
    data = TaskData(SPECS)
    names = [
        {name for name in module(settings_of(), data).state_dict() if ".encoder." in name}
        for module in (PretrainModule, LabelModule)
    ]
    assert names[0] == names[1] != set()


def test_augmentation_by_the_module_itself(
    config: dict[str, Any], prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the guide has it: a dataset that does not augment, a trainer that does."""
    settings = load_config({**config, "seed": 3})
    store = StoreReader(prepared / "store")
    module = PretrainModule(settings, TaskData(store.fields, store=store))
    loader: Any = DataLoader(ViewDataset(store, "train", use_gpu_augment=True), batch_size=8)
    measured: list[dict[str, torch.Tensor]] = []
    measure = module.measure
    monkeypatch.setattr(module, "measure", lambda batch: measured.append(batch) or measure(batch))
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module.enable_gpu_augment(augmentation_config=settings.augmentation, sample_rate=1000)
    assert module.use_gpu_augment
    with quiet_lightning(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it advises workers and a validation
        trainer.fit(module, loader)
    augment = HeartSound().augmentation(settings, TaskData(store.fields))
    for raw, batch in zip(loader, measured, strict=True):
        assert torch.equal(raw["view1"], raw["view2"])
        wanted = augment({"signal": raw["view1"], "key": raw["key"]}, 0)
        assert all(torch.equal(batch[name], wanted[name]) for name in ("view1", "view2", "subs1", "subs2"))


def test_augmentation_by_the_module_of_labels() -> None:
    """It changes the signal itself; without keys torch's generator decides."""
    module, batch = LabelModule(settings_of(), TaskData(SPECS)), batch_of(64)
    doubled = {"amplitude_scale": {"p": 1.0, "range": [2.0, 2.0]}, "gaussian_noise": {"p": 0.0}}
    module.enable_gpu_augment(doubled)
    assert module.gpu_augment is not None
    made = module.augmented(batch, module.gpu_augment, 0)
    assert made["label"] is batch["label"]
    peaks = made["signal"].abs().amax((1, 2)) / batch["signal"].abs().amax((1, 2))
    torch.testing.assert_close(peaks, torch.full_like(peaks, 2.0))
    del batch["key"]
    assert module.augmented(batch, module.gpu_augment, 0)["signal"].shape == batch["signal"].shape


def test_a_batch_without_views_is_refused_in_training() -> None:
    module = PretrainModule(settings_of(), TaskData(SPECS)).train()
    with pytest.raises(TrainError, match=r"no views, only signal, label, key.*enable_gpu_augment"):
        module.measure(batch_of())
    with pytest.raises(TrainError, match="neither 'view1' nor 'signal'"):
        module.augmented({"x": torch.zeros(1)}, module.transforms(None, 1000), 0)


def refused(match: str, data: TaskData | None = None, **settings: Any) -> None:
    with pytest.raises(ConfigError, match=match):
        HeartSound().module(settings_of(**settings), data or TaskData(SPECS))


def test_wrong_input(tmp_path: Path) -> None:
    ragged = {**SPECS, "signal": FieldSpec("signal", "signal", "float32", (1, None))}
    refused(r"one length.*\(1, None\).*fields\.signal\.length", TaskData(ragged))
    refused(r"kind 'label'", TaskData({"signal": SPECS["signal"]}), mode="supervised")
    refused(r"kind 'signal'", TaskData({"label": SPECS["label"]}))
    numbers = {**SPECS, "label": FieldSpec("label", "label", "int64", ())}
    refused(r"model\.params\.num_classes", TaskData(numbers), mode="supervised")
    refused(r"model\.params\.depth: .*num_classes", mode="supervised", model={"params": {"depth": 3}})
    params = {"num_classes": 2}
    refused(r"num_classes: got 2, wanted a whole number, 3", mode="supervised", model={"params": params})
    params = {"freeze_encoder": "no"}
    refused(r"freeze_encoder: got 'no'", mode="supervised", model={"params": params})
    refused(r"there are none", model={"params": {"num_classes": 3}})
    refused(r"mode finetune starts from weights.*--pretrained.*supervised", mode="finetune")
    other = PretrainModule(settings_of(model={"dim": 8, "num_layers": 2}), TaskData(SPECS))
    torch.save(other.state_dict(), tmp_path / "other.ckpt")
    refused(
        r"other\.ckpt is of another encoder.*got \(8, 26, 5\), wanted \(4, 26, 5\).*model\.dim",
        mode="finetune",
        pretrained=str(tmp_path / "other.ckpt"),
    )
    with pytest.raises(TrainError, match="no weights at"):
        HeartSound().module(settings_of(mode="finetune", pretrained="nowhere.ckpt"), TaskData(SPECS))


def labelled(specs: dict[str, FieldSpec], values: dict[str, list[int]]) -> TaskData:
    num = {split: len(labels) for split, labels in values.items()}
    return TaskData(specs, num, values=lambda name, split: torch.tensor(values[split]).numpy())


def test_numbers_as_labels() -> None:
    """How many classes there are is read off the labels, unless it is said."""
    specs = {**SPECS, "label": FieldSpec("label", "label", "int64", ())}
    values = {"train": [0, 3, 1], "val": [2, 4]}
    data = labelled(specs, values)
    module = HeartSound().module(settings_of(mode="supervised"), data)
    assert module.model(batch_of()["signal"]).shape == (6, 5)
    module = HeartSound().module(settings_of(mode="supervised", model={"params": {"num_classes": 7}}), data)
    assert module.model(batch_of()["signal"]).shape == (6, 7)


def test_a_class_that_a_split_lacks_is_told(caplog: pytest.LogCaptureFixture) -> None:
    values = {"train": [0, 1, 2], "val": [0, 2]}
    data = labelled(SPECS, values)
    HeartSound().module(settings_of(mode="supervised"), data)
    assert "val has no sample of MS: it is not measured there." in caplog.text
    assert "train has" not in caplog.text


def test_a_class_that_train_lacks_cannot_be_learned(caplog: pytest.LogCaptureFixture) -> None:
    data = labelled(SPECS, {"train": [0, 2], "val": [0, 1, 2]})
    HeartSound().module(settings_of(mode="supervised"), data)
    assert "train has no sample of MS: it cannot be learned." in caplog.text
    assert "not measured" not in caplog.text


def test_a_sample_gets_its_views_in_a_worker() -> None:
    config, data = settings_of(augmentation={"gaussian_noise": {"p": 1.0}}), TaskData(SPECS)
    views = HeartSound().sample_transform(config, data)
    assert isinstance(views, SampleViews)
    sample = {name: value[0] for name, value in batch_of().items()}
    made = views(sample)
    assert made["view1"].shape == (1, 64)
    assert made["subs1"].shape == (4, 1, 16)
    assert torch.equal(made["subs2"].transpose(0, 1).reshape(1, 64), made["view2"])
    assert not torch.equal(made["view1"], made["view2"])
    assert made["signal"] is sample["signal"]
    assert made["view1"].dtype == torch.float32
    change = HeartSound().sample_transform(settings_of(mode="supervised"), data)
    assert isinstance(change, SampleChange)
    assert set(change(sample)) == set(sample)


def yaseen(data_dir: Path, output: Path) -> dict[str, Any]:
    """The real recordings, near duplicates never in two splits; this seed has every class in each of them."""
    config = config_of(data_dir / "heart_yaseen" / "labels.csv", output, batch_size=64)
    del config["fields"], config["model"]
    ratios = {"train": 0.6, "val": 0.2, "test": 0.2}
    return {**config, "splits": {"group": "near_duplicate_group", "ratios": ratios, "seed": 230}}


@pytest.mark.slow
@pytest.mark.parametrize("path", ["store", "raw files, SciPy"])
def test_it_learns_the_classes(path: str, data_dir: Path, tmp_path: Path) -> None:
    config = yaseen(data_dir, tmp_path)
    DataPreprocessor(config).run()
    counts = classes_by_split(tmp_path / "store")
    assert all(min(split) > 0 for split in counts)
    result = fit({**config, "mode": "supervised", "epochs": 10, **PATHS[path]})
    assert result.metrics["test_balanced_accuracy"] > 0.6  # 0.2 by chance


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"use_gpu_augment": False}], ids=["device", "bank"])
def test_what_it_learned_without_labels_is_of_use(
    settings: dict[str, Any], data_dir: Path, tmp_path: Path
) -> None:
    config = yaseen(data_dir, tmp_path)
    DataPreprocessor(config).run()
    first = fit({**config, "mode": "pretrain", "epochs": 10, **settings})
    assert first.metrics["train_loss"] < 5.5  # 8 at the start
    tuned = {**config, "mode": "finetune", "pretrained": str(first.best_weights), "epochs": 10}
    probe = {"model": {"params": {"freeze_encoder": True}}, "learning_rate": 0.01}
    assert fit({**tuned, **probe}).metrics["test_balanced_accuracy"] > 0.4  # 0.2 by chance
    assert fit(tuned).metrics["test_balanced_accuracy"] > 0.5


@pytest.mark.slow
def test_it_learns_from_recordings_that_it_makes(tmp_path: Path) -> None:
    config = config_of(write_hearts(tmp_path / "raw", 48), tmp_path, mode="supervised", epochs=30)
    config["model"] = {"dim": 16, "num_layers": 3}
    DataPreprocessor(config).run()
    assert fit(config).metrics["test_balanced_accuracy"] > 0.7  # a third by chance


def classes_by_split(folder: Path) -> list[list[int]]:
    store = StoreReader(folder)
    values = stored_values(store)
    return [
        torch.bincount(torch.as_tensor(values("label", split)).flatten(), minlength=5).tolist()
        for split in ("train", "val", "test")
    ]
