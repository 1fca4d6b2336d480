"""fit: from the store and from raw files, what it says, what it leaves."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.tiny import NUM_BATCHES, Tiny, TinyModule, config_of, prepare, write_rows

from flatout.config import load_config
from flatout.errors import ConfigError, MissingDependencyError, StoreMissingError, TrainError, TrainMemoryError
from flatout.train import fit, loggers
from flatout.train.weights import read_weights

Make = Callable[..., dict[str, Any]]


def weights_of(config: dict[str, Any], **settings: Any) -> dict[str, torch.Tensor]:
    result = fit(config, **settings)
    assert result.weights is not None
    return read_weights(result.weights)


def is_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_of_a_users_own_task(make_config: Make) -> None:
    rows: list[Any] = []
    result = fit(make_config(), on_epoch=rows.append)
    assert result.is_fast
    assert result.task == "tiny"
    assert result.speed.num_steps == 2 * NUM_BATCHES
    assert [row.epoch for row in rows] == [0, 1]
    assert rows == result.epochs
    assert {"train_loss", "val_loss", "val_distance", "test_loss", "test_distance"} <= set(result.metrics)
    assert rows[0].train_loss != rows[1].train_loss


def test_both_paths_train_the_same_weights(make_config: Make) -> None:
    fast = weights_of(make_config(use_gpu_augment=True))
    seen = Tiny.made.seen
    standard = weights_of(make_config(use_gpu_augment=True, use_fast_loader=False))
    assert Tiny.made.seen == seen
    assert is_equal(fast, standard)


def test_the_standard_path_augments_sample_by_sample(make_config: Make) -> None:
    own = {"task": "tests.train.tiny:Plain", "use_fast_loader": False}
    whole = weights_of(make_config(**own, use_gpu_augment=True))
    single = weights_of(make_config(**own))
    assert not is_equal(whole, single)
    assert is_equal(single, weights_of(make_config(**own, use_gpu_augment=False)))


def test_without_a_store_it_says_what_it_does_and_how_to_prepare(tmp_path: Path) -> None:
    config = config_of(write_rows(tmp_path / "raw"), tmp_path / "runs", epochs=1)
    said: list[str] = []
    result = fit(config, say=said.append)
    assert not result.is_fast
    (note,) = [text for text in said if "no store yet" in text]
    assert "raw files are decoded in every epoch" in note
    assert "flatout prepare" in note
    assert note in result.notes


def test_a_store_of_other_settings_is_not_used(tmp_path: Path) -> None:
    config = config_of(write_rows(tmp_path / "raw"), tmp_path / "runs", epochs=1)
    prepare(config)
    changed = {**config, "fields": {"x": {"kind": "array", "dtype": "float16"}, "y": {"kind": "scalar"}}}
    said: list[str] = []
    assert not fit(changed, say=said.append).is_fast
    (note,) = [text for text in said if "made with other settings" in text]
    assert "flatout prepare" in note
    assert fit(config).is_fast


def test_insisting_on_a_store_that_is_not_there(tmp_path: Path) -> None:
    config = config_of(write_rows(tmp_path / "raw"), tmp_path / "runs", use_fast_loader=True)
    with pytest.raises(StoreMissingError, match="flatout prepare"):
        fit(config)
    assert not (tmp_path / "runs").exists()


def test_what_a_run_leaves(make_config: Make) -> None:
    result = fit(make_config(logger=["csv"], monitor={"update_frequency": 2}))
    config = load_config(result.folder / "config.yaml", environ={})
    assert config.task == "tests.train.tiny:Tiny"
    assert config.epochs == 2
    record = json.loads((result.folder / "run.json").read_text())
    assert record["speed"]["num_steps"] == 2 * NUM_BATCHES
    assert record["config"]["learning_rate"] == 0.01
    assert [row["epoch"] for row in record["epochs"]] == [0, 1]
    assert len(record["looks"]) == NUM_BATCHES
    assert {"losses.svg", "speed.svg", "weights.safetensors", "best.safetensors", "csv"} <= {
        file.name for file in result.folder.iterdir()
    }
    assert not [note for note in result.notes if "speed.svg" in note]
    assert record["process"]["pid"] == os.getpid()
    assert "val_loss" in (result.folder / "csv" / "metrics.csv").read_text()
    assert len(list((result.folder / "checkpoints").glob("epoch*.ckpt"))) == 2


def test_a_run_too_short_for_a_look_says_what_is_missing(make_config: Make) -> None:
    result = fit(make_config(epochs=1))
    told = "speed.svg is not drawn: the monitor looks every 100 steps (monitor.update_frequency)"
    assert told in result.notes
    assert not (result.folder / "speed.svg").exists()
    assert told not in fit(make_config(epochs=1, disable_metrics_monitoring=True)).notes


def test_every_run_has_a_folder_of_its_own(make_config: Make) -> None:
    config = make_config(epochs=1)
    assert [fit(config).folder.name for _ in range(2)] == ["run-0001", "run-0002"]


def test_no_checkpoints(make_config: Make) -> None:
    result = fit(make_config(save_top_k=0, epochs=1))
    assert result.weights is None
    assert result.last_checkpoint is None
    assert list((result.folder / "checkpoints").iterdir()) == []


def test_best_weights_are_those_of_the_best_epoch(make_config: Make) -> None:
    result = fit(make_config(epochs=4, save_top_k=1, learning_rate=0.3))
    losses = [row.metrics["val_loss"] for row in result.epochs]
    best = min(range(4), key=losses.__getitem__)
    assert result.best_checkpoint is not None
    assert result.best_checkpoint.name.startswith(f"epoch={best:03d}")
    assert result.best_weights is not None
    assert is_equal(read_weights(result.best_weights), read_weights(result.best_checkpoint))


def test_early_stopping(make_config: Make) -> None:
    stop = {"patience": 1, "metric": "val_loss", "min_delta": 1e9}
    said: list[str] = []
    result = fit(make_config(epochs=9, early_stopping=stop), say=said.append)
    assert len(result.epochs) == 2
    (why,) = [text for text in said if text.startswith("early stopping")]
    assert why.startswith("early stopping in epoch 2 of 9: val_loss has not improved by more than 1e+09 for 1 ")
    assert why.endswith(f"the best was {result.epochs[0].metrics['val_loss']:.4g}")
    assert why in json.loads((result.folder / "run.json").read_text())["notes"]


class WithoutDistanceModule(TinyModule):
    """A metric that no sample has."""

    def measure(self, batch: Any) -> Any:
        values = super().measure(batch)
        return {**values, "distance": values["distance"] * float("nan")}


class WithoutDistance(Tiny):
    def module(self, config: Any, data: Any) -> Any:
        return WithoutDistanceModule(config, data)


def test_early_stopping_by_a_metric_that_is_not_finite(make_config: Make) -> None:
    stop = {"patience": 3, "metric": "val_distance"}
    result = fit(make_config(task="tests.train.test_run:WithoutDistance", early_stopping=stop))
    (why,) = [text for text in result.notes if text.startswith("early stopping")]
    assert why.startswith("early stopping in epoch 1 of 2: val_distance is not finite; it is nan")


def test_the_same_seed_the_same_weights(make_config: Make) -> None:
    first = weights_of(make_config(epochs=1))
    torch.manual_seed(99)
    assert is_equal(first, weights_of(make_config(epochs=1)))
    assert not is_equal(first, weights_of(make_config(epochs=1, seed=5)))


def test_no_task(make_config: Make) -> None:
    with pytest.raises(ConfigError, match=r"no task.*heart_sound.*package.module:Name"):
        fit(make_config(task=None))


def test_nothing_is_resumed_from_nothing(make_config: Make, tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="no checkpoint at"):
        fit(make_config(), resume=tmp_path / "nowhere")


def test_the_best_is_told_beside_the_last(make_config: Make) -> None:
    result = fit(make_config(epochs=3, learning_rate=3.0))
    losses = [row.metrics["val_loss"] for row in result.epochs]
    assert losses[-1] > min(losses)
    assert result.metrics["val_loss"] == pytest.approx(losses[-1])
    assert result.metrics["best_val_loss"] == pytest.approx(min(losses))
    assert not any(name.startswith("best_") for name in fit(make_config(limit_val_batches=0)).metrics)


def test_a_run_that_is_done_is_left_as_it_is(make_config: Make) -> None:
    result = fit(make_config(epochs=2))
    record = (result.folder / "run.json").read_bytes()
    with pytest.raises(TrainError, match=r"has had all of its 2 epochs; more of them \(--epochs 4\)"):
        fit(make_config(epochs=2), resume=result.folder)
    assert (result.folder / "run.json").read_bytes() == record
    assert len(fit(make_config(epochs=3), resume=result.folder).epochs) == 3


def test_what_is_doubtful_of_a_store_stands_in_the_record(make_config: Make, tmp_path: Path) -> None:
    config = make_config(epochs=1)
    other = tmp_path / "other.csv"
    result = fit({**config, "manifest": str(other)})
    (told,) = [note for note in result.notes if "was made from" in note]
    assert f"the manifest {other} is not there" in told


def test_notes_are_logged_where_nobody_listens(make_config: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="flatout.train"):
        fit(make_config(epochs=1, device="cuda", devices=1, cudnn_benchmark=True))
    messages = [record.getMessage() for record in caplog.records]
    assert sum("device: cuda is not there" in text for text in messages) == (not torch.cuda.is_available())
    assert any(text.startswith("epoch 1/1: train_loss") for text in messages)


@pytest.mark.parametrize("patience", [1, None])
def test_a_metric_that_nobody_logs(make_config: Make, patience: int | None) -> None:
    stop = {"patience": patience, "metric": "val_nothing"}
    with pytest.raises(ConfigError, match=r"val_nothing.*val_loss"):
        fit(make_config(early_stopping=stop, epochs=1))


def test_nothing_is_validated(make_config: Make) -> None:
    result = fit(make_config(limit_val_batches=0))
    assert "val_loss" not in result.metrics
    assert result.best_checkpoint is not None  # the newest


def test_a_test_that_fails_leaves_weights_and_a_record(
    make_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(TinyModule, "test_step", fails)
    with pytest.raises(TrainMemoryError, match="batch_size: 2 with"):
        fit(make_config(epochs=1))
    (folder,) = Path(make_config()["output_dir"]).iterdir()
    assert (folder / "weights.safetensors").exists()
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "failed"
    assert record["epochs"][0]["metrics"]["val_loss"] > 0


def test_what_is_no_checkpoint_of_a_run(make_config: Make, tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "weights.pt")
    with pytest.raises(TrainError, match="is no checkpoint of a run; 'pretrained' takes weights"):
        fit(make_config(), resume=tmp_path / "weights.pt")
    result = fit(make_config(epochs=1))
    assert result.last_checkpoint is not None
    data = result.last_checkpoint.read_bytes()
    (tmp_path / "cut.ckpt").write_bytes(data[: len(data) // 2])
    with pytest.raises(TrainError, match="is cut off or damaged"):
        fit(make_config(), resume=tmp_path / "cut.ckpt")


def test_a_logger_whose_library_is_missing(make_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(folder: Path) -> Any:
        raise ModuleNotFoundError("tensorboard")

    monkeypatch.setitem(loggers._MAKERS, "tensorboard", missing)
    with pytest.raises(MissingDependencyError, match="pip install tensorboard"):
        fit(make_config(logger=["tensorboard"]))
    assert not list(Path(make_config()["output_dir"]).glob("run-*"))  # none of a run that never began


def test_loggers_are_looked_for_first(make_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install wandb"):
        fit(make_config(logger=["csv", "wandb"]))
    assert not Path(make_config()["output_dir"]).exists()


def test_a_trainer_that_cannot_be_made_leaves_no_folder(make_config: Make) -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        fit(make_config(), trainer_options={"no_such_option": 1})
    assert list(Path(make_config()["output_dir"]).iterdir()) == []
