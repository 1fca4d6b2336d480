"""What ends a run: no memory, a loss that is not finite, a checkpoint that holds code."""

from __future__ import annotations

import json
import pickle
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from tests.train.tiny import Tiny, TinyModule

from flatout.config import load_config
from flatout.errors import NonfiniteLossError, TrainError, TrainMemoryError
from flatout.train import fit
from flatout.train.memory import is_out_of_memory, memory_advice
from flatout.train.nonfinite import LOOK_EVERY, StopAtNonfinite
from flatout.types import FieldSpec

Make = Callable[..., dict[str, Any]]
RAGGED = {"x": FieldSpec("x", "sequence", "float32", (None, 3))}
FIXED = {"x": FieldSpec("x", "image", "float32", (1, 8, 8))}


class Fails(Callback):
    def __init__(self, error: Exception) -> None:
        self.error = error

    def on_train_batch_start(self, *_: Any) -> None:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError(),
    ],
)
def test_out_of_memory_is_one_message(make_config: Make, error: Exception) -> None:
    with pytest.raises(TrainMemoryError) as caught:
        fit(make_config(gradient_accumulation_steps=3), callbacks=[Fails(error)])
    told = str(caught.value)
    assert "batch_size: 2 with gradient_accumulation_steps: 6 (now 4 and 3)" in told
    assert "precision: bf16-mixed" in told
    assert "num_workers" in told
    assert "max_sequence_length" not in told
    assert caught.value.__cause__ is error


def test_other_errors_stay_what_they_are(make_config: Make) -> None:
    with pytest.raises(RuntimeError, match=r"^something else$"):
        fit(make_config(), callbacks=[Fails(RuntimeError("something else"))])
    (folder,) = Path(make_config()["output_dir"]).iterdir()
    record = json.loads((folder / "run.json").read_text())
    assert (record["status"], record["error"]) == ("failed", "RuntimeError: something else")
    assert record["config"]["epochs"] == 2
    assert not is_out_of_memory(ValueError("out of memory"))


def test_the_advice_follows_the_settings() -> None:
    config = load_config(
        {"batch_size": 1, "max_sequence_length": 800, "cache_on_device": True, "cache_in_memory": True},
        environ={},
    )
    told = memory_advice(config, "bf16-mixed", RAGGED, torch.OutOfMemoryError("CUDA out of memory."))
    assert "batch_size:" not in told
    assert "max_sequence_length: 400 (now 800)" in told
    assert "precision" not in told
    assert "cache_on_device: false" in told
    assert "cache_in_memory" in told
    assert "max_sequence_length" not in memory_advice(config, "32-true", FIXED, MemoryError())


def test_the_advice_where_batches_are_made_by_tokens() -> None:
    config = load_config({"max_tokens": 6000, "gradient_accumulation_steps": 2}, environ={})
    told = memory_advice(config, "bf16-mixed", RAGGED, MemoryError())
    assert "max_tokens: 3000 with gradient_accumulation_steps: 4 (now 6000 and 2)" in told
    assert "batch_size:" not in told


KILLED = "DataLoader worker (pid 71) is killed by signal: Killed. "
BUS = (
    "DataLoader worker (pid 71) is killed by signal: Bus error. It is possible that dataloader's workers are "
    "out of shared memory. Please try to raise your shared memory limit."
)


@pytest.mark.parametrize(
    ("told", "wanted"),
    [(KILLED, ["num_workers", "a store"]), (BUS, ["more shared memory", "num_workers", "a store"])],
)
def test_the_advice_where_the_system_ended_a_worker(told: str, wanted: list[str]) -> None:
    config = load_config({"num_workers": 6, "prefetch_factor": 4, "cache_in_memory": True}, environ={})
    after = RuntimeError("DataLoader worker (pid(s) 71) exited unexpectedly")
    after.__cause__ = RuntimeError(told)
    for error in (RuntimeError(told), after):
        assert is_out_of_memory(error)
        first, *remedies = memory_advice(config, "32-true", FIXED, error).splitlines()
        assert "killed by signal" in first
        assert all(line.startswith(f"  - {name}") for line, name in zip(remedies, wanted, strict=False))
        assert "  - num_workers (now 6) and prefetch_factor (now 4): half of each" in "\n".join(remedies)
        assert remedies[-1].startswith("  - cache_in_memory")
    after.__cause__ = ValueError(told)
    assert not is_out_of_memory(after)


def test_the_advice_promises_no_more_than_it_keeps() -> None:
    even, odd = (
        memory_advice(load_config({"batch_size": size}, environ={}), "bf16-mixed", FIXED, MemoryError())
        for size in (8, 7)
    )
    assert "the same gradients" in even
    assert "the same gradients" not in odd
    assert "steps of 6 samples instead of 7" in odd
    assert "contrastive" in even


def out_of_memory(*_: Any, **__: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize("place", ["flatout.train.run.open_loaders", "flatout.train.run.Run._data"])
def test_out_of_memory_before_the_training(
    make_config: Make, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, out_of_memory)
    with pytest.raises(TrainMemoryError, match="batch_size: 2 with gradient_accumulation_steps: 2"):
        fit(make_config())


class Large(Tiny):
    def module(self, config: Any, data: Any) -> Any:
        return out_of_memory()


def test_out_of_memory_while_the_model_is_made(make_config: Make) -> None:
    with pytest.raises(TrainMemoryError, match="batch_size: 2 with gradient_accumulation_steps: 2"):
        fit(make_config(task="tests.train.test_trouble:Large"))


class Interrupts(Callback):
    """Ctrl-C in the second epoch."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        if trainer.current_epoch == 1 and index == 2:
            raise KeyboardInterrupt


def test_an_interrupted_run_goes_on(make_config: Make) -> None:
    before = signal.getsignal(signal.SIGINT)
    whole = fit(make_config())
    with pytest.raises(KeyboardInterrupt):
        fit(make_config(), callbacks=[Interrupts()])
    assert signal.getsignal(signal.SIGINT) is before
    folder = Path(make_config()["output_dir"]) / "run-0002"
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "interrupted"
    assert len(record["epochs"]) == 1
    rest = fit(make_config(), resume=folder)
    assert rest.metrics == whole.metrics
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"


class SpoiltModule(TinyModule):
    """The loss of one sample is NaN."""

    def measure(self, batch: Any) -> Any:
        values = super().measure(batch)
        is_spoilt = batch["y"] == batch["y"].max()
        return {**values, "loss": torch.where(is_spoilt, values["loss"] * float("nan"), values["loss"])}


class Spoilt(Tiny):
    def module(self, config: Any, data: Any) -> Any:
        return SpoiltModule(config, data)


def test_a_loss_that_is_not_finite_names_the_sample(make_config: Make) -> None:
    with pytest.raises(NonfiniteLossError) as caught:
        fit(make_config(task="tests.train.test_trouble:Spoilt", learning_rate=0.125))
    told = str(caught.value)
    assert "the loss is nan at step" in told
    assert "Samples: s" in told
    assert told.count("s0") + told.count("s1") == 1  # one key, not the whole batch
    assert "Precision 32-true, learning rate 0.125" in told
    assert "lower learning_rate" in told


def test_the_standard_path_names_it_too(make_config: Make) -> None:
    config = make_config(task="tests.train.test_trouble:Spoilt", use_fast_loader=False)
    with pytest.raises(NonfiniteLossError, match=r"Samples: s\d\d\. "):
        fit(config)


class SpoiltLaterModule(SpoiltModule):
    def measure(self, batch: Any) -> Any:
        return TinyModule.measure(self, batch) if self.training else super().measure(batch)


class SpoiltLater(Tiny):
    """Only what is validated."""

    def module(self, config: Any, data: Any) -> Any:
        return SpoiltLaterModule(config, data)


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_validation_that_is_not_finite_names_the_sample(make_config: Make, is_fast: bool) -> None:
    """Early stopping would call the run finished."""
    settings = {"use_fast_loader": is_fast, "early_stopping": {"patience": 3}}
    told = r"^the validation loss is nan at step 4\. Samples: s1[4-8]\. "
    with pytest.raises(NonfiniteLossError, match=told):
        fit(make_config(task="tests.train.test_trouble:SpoiltLater", **settings))
    (folder,) = Path(make_config()["output_dir"]).iterdir()
    assert json.loads((folder / "run.json").read_text())["status"] == "failed"
    assert not list(folder.glob("checkpoints/*.ckpt"))


class Still:
    """A trainer and a module on a device that would have to be waited for."""

    global_step = 7
    precision = "16-mixed"
    optimizers = ()
    device = torch.device("meta")


def test_elsewhere_it_looks_at_many_steps_at_once() -> None:
    look = StopAtNonfinite(lambda hashes: [str(number) for number in hashes])
    still: Any = Still()
    batch = {"key": torch.tensor([5, 6])}
    losses = torch.tensor([1.0, float("inf")])
    look.on_train_batch_end(still, still, {"loss": losses.sum(), "losses": losses}, batch, 0)
    for _ in range(LOOK_EVERY - 2):
        look.on_train_batch_end(still, still, {"loss": torch.tensor(1.0)}, batch, 0)
    with pytest.raises(NonfiniteLossError, match=r"Samples: 6\."):
        look.on_train_batch_end(still, still, {"loss": torch.tensor(1.0)}, batch, 0)
    look.on_train_batch_end(still, still, {"loss": torch.tensor(float("nan"))}, batch, 0)
    with pytest.raises(NonfiniteLossError, match=r"Samples: 5, 6\."):
        look.on_save_checkpoint(still, still, {})  # nothing spoilt is written
    look.look(still)


def test_elsewhere_it_looks_at_a_whole_validation() -> None:
    look = StopAtNonfinite(lambda hashes: [str(number) for number in hashes])
    still: Any = Still()
    batch, losses = {"key": torch.tensor([5, 6])}, torch.tensor([float("nan"), 1.0])
    look.on_validation_batch_end(still, still, {"loss": losses.sum(), "losses": losses}, batch, 0)
    look.on_validation_batch_end(still, still, None, batch, 1)  # a module of another kind
    with pytest.raises(NonfiniteLossError, match=r"^the validation loss is nan at step 7\. Samples: 5\."):
        look.on_validation_end(still, still)


class Harmful:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.path, "executed"))


def harmful_checkpoint(tmp_path: Path) -> tuple[Path, Path]:
    path, trace = tmp_path / "harmful.ckpt", tmp_path / "trace"
    torch.save({"state_dict": {}, "extra": Harmful(trace)}, path)
    pickle.loads(pickle.dumps(Harmful(trace)))
    assert trace.read_text() == "executed"  # it would do harm
    trace.unlink()
    return path, trace


def test_a_checkpoint_with_code_is_not_executed(make_config: Make, tmp_path: Path) -> None:
    path, trace = harmful_checkpoint(tmp_path)
    with pytest.raises(TrainError, match="a file that holds code or objects of classes is refused"):
        fit(make_config(), resume=path)
    assert not trace.exists()


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_is_refused_in_few_words(make_config: Make, tmp_path: Path, protocol: int) -> None:
    """No advice of torch's to save it otherwise, and no warning of its protocol."""
    path, trace = tmp_path / "harmful.pkl", tmp_path / "trace"
    path.write_bytes(pickle.dumps(Harmful(trace), protocol=protocol))
    for settings in ({"resume": path}, {"overrides": {"pretrained": str(path)}}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(TrainError) as caught:
                fit(make_config(), **settings)
        told = str(caught.value)
        assert told.startswith(f"{path} cannot be loaded: it holds ")
        assert "mmap" not in told
    assert not trace.exists()


def test_pretrained_weights_with_code_are_not_executed(make_config: Make, tmp_path: Path) -> None:
    path, trace = harmful_checkpoint(tmp_path)
    with pytest.raises(TrainError, match="a file that holds code or objects of classes is refused"):
        fit(make_config(pretrained=str(path)))
    assert not trace.exists()


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        ([float("nan")] * 2, r"Samples: 5, 6\. .*whole batch: weights that a step before has spoilt.* Lower"),
        ([float("nan"), 1.0], r"Samples: 5\. .*Look at these samples first; if they are sound, lower"),
    ],
)
def test_weights_that_are_spoilt_are_not_laid_at_the_samples_door(losses: list[float], told: str) -> None:
    look = StopAtNonfinite(lambda hashes: [str(number) for number in hashes])
    still: Any = Still()
    values = torch.tensor(losses)
    outputs = {"loss": values.sum(), "losses": values}
    look.on_train_batch_end(still, still, outputs, {"key": torch.tensor([5, 6])}, 0)
    with pytest.raises(NonfiniteLossError, match=told):
        look.look(still)
