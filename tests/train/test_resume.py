"""A run that is stopped after any batch and resumed sees the same samples and ends with the same weights."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from tests.train.test_run import is_equal, weights_of
from tests.train.test_trouble import Interrupts
from tests.train.tiny import NUM_BATCHES, SaveEach, Tiny, TinyModule

from flatout.errors import LoaderStateError, TrainError
from flatout.train import fit, run
from flatout.train.checkpoints import KeepLast
from flatout.train.weights import read_weights

Make = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_accumulation_steps": 3},
        {"gradient_accumulation_steps": 3, "use_fast_loader": False, "use_gpu_augment": True},
    ],
    ids=["each batch a step", "inside an accumulation", "standard path"],
)
def test_resumed_anywhere(make_config: Make, tmp_path: Path, settings: dict[str, Any]) -> None:
    config = make_config(**settings)
    whole = fit(config, callbacks=[SaveEach(tmp_path)])
    seen = Tiny.made.seen
    assert len(seen) == 2 * NUM_BATCHES
    assert whole.weights is not None
    for stop in range(1, 2 * NUM_BATCHES):
        rest = fit(config, resume=tmp_path / f"batch{stop}.ckpt")
        assert Tiny.made.seen == seen[stop:], stop
        assert rest.weights is not None
        assert is_equal(read_weights(rest.weights), read_weights(whole.weights)), stop
        assert rest.epochs[-1].train_loss == pytest.approx(whole.epochs[-1].train_loss, rel=1e-5), stop


def test_the_last_checkpoint_continues_with_more_epochs(make_config: Make) -> None:
    whole = fit(make_config(epochs=3, save_top_k=1))
    first = fit(make_config(epochs=1, save_top_k=1))
    rest = fit(make_config(epochs=3, save_top_k=1), resume=first.folder)
    assert rest.folder == first.folder
    assert [(row.epoch, row.train_loss) for row in rest.epochs] == [
        (row.epoch, row.train_loss) for row in whole.epochs
    ]
    assert whole.weights is not None
    assert rest.weights is not None
    assert is_equal(read_weights(whole.weights), read_weights(rest.weights))
    assert whole.best_checkpoint is not None
    assert rest.best_checkpoint is not None
    assert rest.best_checkpoint.name == whole.best_checkpoint.name


def test_a_run_that_begins_at_a_checkpoint_leaves_the_other_alone(make_config: Make) -> None:
    first = fit(make_config(epochs=2, save_top_k=1))
    before = {file: file.read_bytes() for file in first.folder.rglob("*") if file.is_file()}
    assert first.last_checkpoint is not None
    second = fit(make_config(epochs=4, save_top_k=1), resume=first.last_checkpoint)
    assert second.folder != first.folder
    assert {file: file.read_bytes() for file in first.folder.rglob("*") if file.is_file()} == before
    assert second.best_checkpoint is not None
    assert second.best_checkpoint.parent == second.folder / "checkpoints"


@pytest.mark.parametrize(("steps", "num_done"), [(1, 6), (3, 4)])
def test_the_checkpoint_between_two_epochs(
    make_config: Make, tmp_path: Path, steps: int, num_done: int
) -> None:
    """Written when it is time, here always, but only between two steps; the run is stopped before batch 7."""
    config = make_config(gradient_accumulation_steps=steps)
    whole = weights_of(config)
    seen = Tiny.made.seen
    with pytest.raises(KeyboardInterrupt):
        fit(config, callbacks=[KeepLast(tmp_path, every_s=0.0), Interrupts()])
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert "flatout_gradients" not in state
    rest = weights_of(config, resume=tmp_path / "last.ckpt")
    assert Tiny.made.seen == seen[num_done:]
    assert is_equal(rest, whole)


def test_validation_in_the_middle_changes_nothing(make_config: Make, tmp_path: Path) -> None:
    plain = weights_of(make_config())
    often = make_config(val_check_interval=1, gradient_accumulation_steps=1)
    assert is_equal(plain, weights_of(often, callbacks=[SaveEach(tmp_path)]))
    assert is_equal(plain, weights_of(often, resume=tmp_path / "batch3.ckpt"))


@pytest.mark.parametrize("steps", [1, 2])
def test_resumed_from_a_validation_in_the_middle(make_config: Make, steps: int) -> None:
    """The best checkpoint is written when a validation ends: after three of four batches, with two batches a
    step inside an accumulation."""
    config = make_config(val_check_interval=3, gradient_accumulation_steps=steps, save_top_k=9)
    whole = fit(config)
    seen = Tiny.made.seen
    assert whole.weights is not None
    saved = sorted((whole.folder / "checkpoints").glob("epoch*.ckpt"))
    assert len(saved) == 2
    for epoch, path in enumerate(saved):
        rest = fit(config, resume=path)
        assert Tiny.made.seen == seen[epoch * NUM_BATCHES + 3 :]
        assert rest.weights is not None
        assert is_equal(read_weights(rest.weights), read_weights(whole.weights))


def test_every_checkpoint_is_plain_data(make_config: Make, tmp_path: Path) -> None:
    config = make_config(gradient_accumulation_steps=3, epochs=1)
    result = fit(config, callbacks=[SaveEach(tmp_path)])
    for path in [*tmp_path.glob("*.ckpt"), *result.folder.rglob("*.ckpt")]:
        state = torch.load(path, weights_only=True)
        assert state["RunData"]["loader"]["num_samples"] == 14
        assert state["RunData"]["augmentation"]["seed"] == 0


def test_other_data_and_other_augmentation_are_refused(make_config: Make) -> None:
    first = fit(make_config(epochs=1))
    with pytest.raises(LoaderStateError, match="augmentation seed 0, this run 3"):
        fit(make_config(epochs=2, seed=3), resume=first.folder)
    with pytest.raises(LoaderStateError, match="fast loader, this run reads raw files"):
        fit(make_config(epochs=2, use_fast_loader=False, use_gpu_augment=True), resume=first.folder)


def test_raw_files_in_other_batches_are_refused(make_config: Make) -> None:
    """14 samples are three batches of five and of six."""
    raw = {"use_fast_loader": False, "use_gpu_augment": True}
    first = fit(make_config(epochs=1, batch_size=5, **raw))
    assert first.last_checkpoint is not None
    state = torch.load(first.last_checkpoint, weights_only=True)["RunData"]["loader"]
    keys = "\n".join(f"s{number:02d}" for number in range(14))
    assert (state["batch_size"], state["world"], state["samples"]) == (5, 1, f"{zlib.crc32(keys.encode()):08x}")
    with pytest.raises(LoaderStateError, match="batch_size 5, this run 6"):
        fit(make_config(epochs=2, batch_size=6, **raw), resume=first.folder)


def test_a_run_that_does_not_go_on_stays_as_it_was(make_config: Make) -> None:
    """Another model, data or seed: neither its record nor its settings are lost."""
    first = fit(make_config(epochs=1))
    before = {file: file.read_bytes() for file in first.folder.rglob("*") if file.is_file()}
    with pytest.raises(
        TrainError, match=r"is of another training: task was .*:Tiny, is .*:Wide now.*config\.yaml"
    ):
        fit(make_config(epochs=2, task="tests.train.test_resume:Wide"), resume=first.folder)
    (first.folder / "config.yaml").unlink()  # only the weights tell it now
    with pytest.raises(
        TrainError, match=r"another model: 'model\.0\.weight' is \(8, 6\) there and \(9, 6\) here"
    ):
        fit(make_config(epochs=2, task="tests.train.test_resume:Wide"), resume=first.folder)
    (first.folder / "config.yaml").write_bytes(before[first.folder / "config.yaml"])
    with pytest.raises(LoaderStateError):
        fit(make_config(epochs=2, seed=3, logger=["csv"]), resume=first.folder)
    with pytest.raises(NotNow):
        fit(make_config(epochs=2, logger=["csv"]), resume=first.folder, callbacks=[Refusing()])
    assert {file: file.read_bytes() for file in first.folder.rglob("*") if file.is_file()} == before
    assert [path.name for path in first.folder.iterdir() if path.is_dir()] == ["checkpoints"]
    fit(make_config(epochs=2), resume=first.folder)
    assert "epochs: 2" in (first.folder / "config.yaml").read_text()


class NotNow(Exception):
    pass


class Refusing(Callback):
    """Fails after the logger has made its folder, before the first step."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        raise NotNow


@pytest.mark.parametrize("of", ["folder", "checkpoint"])
def test_another_mode_is_another_training(make_config: Make, tmp_path: Path, of: str) -> None:
    """Even where the weights would fit."""
    first = fit(make_config(epochs=1, mode="pretrain"))
    place = first.folder if of == "folder" else first.last_checkpoint
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TrainError) as refused:
        fit(make_config(epochs=2, mode="supervised"), resume=place)
    told = str(refused.value)
    assert told.startswith(f"resume: {place} is of another training: mode was pretrain, is supervised now. ")
    assert f"--config {first.folder / 'config.yaml'}" in told
    assert f"--pretrained {place} begins a new one" in told
    assert sorted(tmp_path.rglob("*")) == before
    fit(make_config(epochs=1, mode="supervised", pretrained=str(place)))


def test_what_makes_another_model_is_named(make_config: Make) -> None:
    first = fit(make_config(epochs=1, task="tests.train.test_resume:Sized", model={"dim": 3}))
    told = r"'model\.0\.weight' is \(3, 6\) there and \(5, 6\) here; model\.dim was 3, is 5 now\."
    with pytest.raises(TrainError, match=told):
        fit(make_config(epochs=2, task="tests.train.test_resume:Sized", model={"dim": 5}), resume=first.folder)


def test_a_finished_run_is_refused_before_its_data_are_opened(
    make_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fit(make_config(epochs=1))
    monkeypatch.setattr(run, "open_loaders", lambda *_: pytest.fail("opened"))
    with pytest.raises(TrainError, match="has had all of its 1 epochs"):
        fit(make_config(epochs=1, batch_size="auto"), resume=first.folder)


@pytest.mark.parametrize("of", ["folder", "checkpoint"])
@pytest.mark.parametrize("ending", ["finished", "killed"])
def test_fewer_epochs_than_are_done_are_refused_before_data_are_opened(
    make_config: Make, monkeypatch: pytest.MonkeyPatch, of: str, ending: str
) -> None:
    first = fit(make_config(epochs=3))
    if ending == "killed":
        (first.folder / "run.json").unlink()
    place = first.folder if of == "folder" else first.last_checkpoint
    with monkeypatch.context() as patch:
        patch.setattr(run, "open_loaders", lambda *_: pytest.fail("opened"))
        for epochs in (1, 2):  # Lightning takes two: its count does not have the epoch that a checkpoint ends
            told = f"resume: {place} has had 3 epochs, and {epochs} are asked for; more of them (--epochs 6)"
            with pytest.raises(TrainError, match=re.escape(told)):
                fit(make_config(epochs=epochs), resume=place)
    more = fit(make_config(epochs=1), resume=place, trainer_options={"max_epochs": 4})
    assert len(more.epochs) == 4


def test_a_run_killed_after_its_last_epoch_comes_to_its_end(make_config: Make) -> None:
    first = fit(make_config(epochs=2))
    assert first.weights is not None
    for path in (first.folder / "run.json", first.weights):
        path.unlink()
    rest = fit(make_config(epochs=2), resume=first.folder)
    assert len(rest.epochs) == 2
    assert rest.weights == first.weights
    assert first.weights.is_file()


def test_a_task_that_is_gone_is_another_training_all_the_same(make_config: Make) -> None:
    """Nothing is imported to find that out."""
    first = fit(make_config(epochs=1))
    config = first.folder / "config.yaml"
    config.write_text(config.read_text().replace("tests.train.tiny:Tiny", "no_longer_here:Tiny"))
    with pytest.raises(TrainError, match=r"task was no_longer_here:Tiny, is tests.train.tiny:Tiny now"):
        fit(make_config(epochs=2), resume=first.folder)


@pytest.mark.parametrize("task", ["Late", "Lazy"])
def test_weights_that_are_made_later_go_on(make_config: Make, task: str) -> None:
    """Lightning makes or fills them before it loads a checkpoint."""
    config = make_config(epochs=1, task=f"tests.train.test_resume:{task}")
    first = fit(config)
    assert first.weights is not None
    assert "extra.weight" in read_weights(first.weights)
    rest = fit({**config, "epochs": 2}, resume=first.folder)
    assert len(rest.epochs) == 2


def test_what_several_processes_read_is_asked_when_they_are_connected(
    make_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options of the Trainer may start more of them than the config says."""
    first = fit(make_config(epochs=1))
    asked: list[bool] = []
    monkeypatch.setattr(run, "refuse_other_model", lambda *_, is_alone: asked.append(is_alone))
    for options in ({}, {"num_nodes": 1}, {"devices": 1}):
        fit(make_config(epochs=2), resume=first.last_checkpoint, trainer_options=options)
    assert asked == [True, False, False]


class Rates(Callback):
    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.rate = trainer.optimizers[0].param_groups[0]["lr"]


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("linear", 2)])
def test_another_learning_rate_is_taken(make_config: Make, scaling: str, factor: int) -> None:
    """Of a rate that was scaled the scale stays, with the batches."""
    config = make_config(epochs=1, gradient_accumulation_steps=2, scale_learning_rate=scaling)
    first, rates = fit(config), Rates()
    again = fit({**config, "epochs": 2, "learning_rate": 0.004}, resume=first.folder, callbacks=[rates])
    assert rates.rate == 0.004 * factor
    assert "learning_rate: it was 0.01, and is 0.004 from here on" in again.notes
    assert not [note for note in fit({**config, "epochs": 2}).notes if "learning_rate" in note]
    third = fit({**config, "epochs": 3, "learning_rate": 0.004}, resume=first.folder, callbacks=[rates])
    assert rates.rate == 0.004 * factor
    assert not [note for note in third.notes if "learning_rate" in note]


def test_another_patience_is_taken(make_config: Make) -> None:
    stop = {"patience": 1, "min_delta": 1e9}
    first = fit(make_config(epochs=6, early_stopping=stop))
    assert len(first.epochs) == 2
    rest = fit(make_config(epochs=6, early_stopping={**stop, "patience": 3}), resume=first.folder)
    assert len(rest.epochs) == 4


def test_settings_are_swapped_not_written_over(make_config: Make) -> None:
    first = fit(make_config(epochs=1))
    with open(first.folder / "config.yaml", encoding="utf-8") as before:
        fit(make_config(epochs=2), resume=first.folder)
        assert "epochs: 1" in before.read()
    assert "epochs: 2" in (first.folder / "config.yaml").read_text()
    assert not list(first.folder.glob("*.part"))


class LateModule(TinyModule):
    def configure_model(self) -> None:
        if not hasattr(self, "extra"):
            self.extra = torch.nn.Linear(2, 2)


class Late(Tiny):
    def module(self, config: Any, data: Any) -> Any:
        return LateModule(config, data)


class LazyModule(TinyModule):
    def __init__(self, config: Any, data: Any) -> None:
        super().__init__(config, data)
        self.extra = torch.nn.LazyLinear(2)

    def measure(self, batch: Any) -> Any:
        found = super().measure(batch)
        return {**found, "loss": found["loss"] + self.extra(batch["x"].to(self.dtype)).sum(1)}


class Lazy(Tiny):
    def module(self, config: Any, data: Any) -> Any:
        return LazyModule(config, data)


class Sized(Tiny):
    def module(self, config: Any, data: Any) -> Any:
        module: Any = super().module(config, data)
        dim = config.model.dim
        module.model[0], module.model[3] = torch.nn.Linear(6, dim), torch.nn.Linear(dim, 1)
        return module


class Wide(Tiny):
    def module(self, config: Any, data: Any) -> Any:
        module: Any = super().module(config, data)
        module.model[0] = torch.nn.Linear(6, 9)
        return module


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_smaller_save_top_k_keeps_so_many(make_config: Make, mode: str) -> None:
    watched = {"early_stopping": {"mode": mode}}
    first = fit(make_config(epochs=4, save_top_k=4, **watched))
    scores = {row.epoch: row.metrics["val_loss"] for row in first.epochs}
    rest = fit(make_config(epochs=7, save_top_k=2, **watched), resume=first.folder)
    scores |= {row.epoch: row.metrics["val_loss"] for row in rest.epochs}
    best = sorted(scores, key=scores.__getitem__, reverse=mode == "max")[:2]
    kept = [path.name for path in (rest.folder / "checkpoints").glob("epoch*.ckpt")]
    assert sorted(kept) == [f"epoch={epoch:03d}-step={4 * (epoch + 1):06d}.ckpt" for epoch in sorted(best)]
    assert rest.best_checkpoint is not None
    assert rest.best_checkpoint.name.startswith(f"epoch={best[0]:03d}-")


def test_a_run_without_a_checkpoint_says_how_to_begin_anew(make_config: Make, tmp_path: Path) -> None:
    with pytest.raises(NotNow):
        fit(make_config(), callbacks=[RefusingLater()])
    (folder,) = Path(make_config()["output_dir"]).iterdir()
    told = (
        rf"no checkpoint at .*last\.ckpt; the run ended before.*Begin anew with --config {folder}/config\.yaml"
    )
    with pytest.raises(TrainError, match=told):
        fit(make_config(), resume=folder)
    with pytest.raises(TrainError, match=r"no checkpoint at .*: give the folder of a run"):
        fit(make_config(), resume=tmp_path)


class RefusingLater(Callback):
    """Fails in the first epoch."""

    def on_train_batch_end(self, *_: Any) -> None:
        raise NotNow
