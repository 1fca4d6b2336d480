"""Speed settings: applied where they are legal, said where not, undone after the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from tests.train.tiny import Tiny, TinyModule
from torch import nn

from flatout.config import Config, load_config
from flatout.train import PosteriorMetricsMonitor, fit, speed
from flatout.types import FieldSpec

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
FIXED = {"x": FieldSpec("x", "image", "float32", (1, 8, 8))}
RAGGED = {"x": FieldSpec("x", "sequence", "float32", (None, 3))}
CONVOLUTIONS = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv3d(1, 4, 3))


def config(**settings: Any) -> Config:
    return load_config(settings, environ={})


def test_everything_is_put_back() -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    with speed.fast_kernels(config(), CPU):
        torch.set_float32_matmul_precision("medium")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = not before[1]
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark) == before
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_needs_cuda_is_said_only_where_it_was_asked_for() -> None:
    with speed.fast_kernels(config(), CPU) as notes:
        assert notes == []
    with speed.fast_kernels(config(matmul_precision="highest"), CPU) as notes:
        assert notes == ["matmul_precision: no effect without CUDA"]


@pytest.mark.parametrize(("asked", "is_tf32"), [("medium", True), ("high", True), ("highest", False)])
def test_products_and_convolutions_in_tf32_on_cuda(asked: str, is_tf32: bool) -> None:
    before = torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cudnn.allow_tf32 = not is_tf32
        with speed.fast_kernels(config(matmul_precision=asked), CUDA) as notes:
            assert notes == []
            assert torch.get_float32_matmul_precision() == asked
            assert torch.backends.cudnn.allow_tf32 is is_tf32
        assert torch.backends.cudnn.allow_tf32 is not is_tf32
    finally:
        torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize(
    ("settings", "device", "fields", "wanted"),
    [
        ({}, CUDA, FIXED, True),
        ({}, CUDA, RAGGED, False),
        ({"use_dynamic_padding": False}, CUDA, RAGGED, True),
        ({}, CPU, FIXED, False),
        ({"cudnn_benchmark": False}, CUDA, FIXED, False),
        ({"deterministic": True}, CUDA, FIXED, False),
    ],
)
def test_cudnn_tries_where_shapes_repeat(settings: Any, device: Any, fields: Any, wanted: bool) -> None:
    assert speed.wants_benchmark(config(**settings), device, fields) is wanted


def test_cudnn_that_may_not_try_is_told_where_it_was_asked_for() -> None:
    asked = config(cudnn_benchmark=True)
    assert speed.benchmark_note(config(), CUDA, RAGGED) is None
    assert speed.benchmark_note(asked, CUDA, FIXED) is None
    assert speed.benchmark_note(asked, CPU, RAGGED) is None  # `fast_kernels` says that there is no CUDA
    ragged = speed.benchmark_note(asked, CUDA, RAGGED)
    assert ragged is not None
    assert "batches of ragged fields differ in shape" in ragged
    exact = speed.benchmark_note(config(cudnn_benchmark=True, deterministic=True), CUDA, FIXED)
    assert exact == "cudnn_benchmark: deterministic does not allow it; no effect"


@pytest.mark.parametrize(
    ("settings", "precision", "device", "wanted"),
    [
        ({}, "bf16-mixed", CUDA, True),
        ({}, "32-true", CUDA, False),
        ({}, "bf16-mixed", CPU, False),
        ({"channels_last": True}, "32-true", CPU, True),
        ({"channels_last": False}, "bf16-mixed", CUDA, False),
    ],
)
def test_channels_last_where_it_pays(settings: Any, precision: str, device: Any, wanted: bool) -> None:
    found = speed.memory_format(config(**settings), CONVOLUTIONS, precision, device)
    assert (found is not None) is wanted
    assert speed.memory_format(config(**settings), nn.Linear(2, 2), precision, device) is None


def test_channels_last_changes_the_layout_alone() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(6, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    layout = speed.memory_format(config(channels_last=True), model, "32-true", CPU)
    assert layout is not None
    layout.change_module(model)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    batch = {"x": torch.randn(2, 3, 8, 8), "mask": torch.ones(2, 3, 8, 8).long(), "key": torch.arange(2)}
    changed = layout.change_batch(batch)
    assert changed["x"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(changed["x"], batch["x"])
    assert changed["mask"] is batch["mask"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
def test_compiled_in_place_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Module()
    module.model = nn.Linear(2, 2)
    names = set(module.state_dict())
    assert speed.compile_in_place(config(), module, CPU) is None
    assert module.model._compiled_call_impl is None
    monkeypatch.setattr(speed.shutil, "which", lambda name: "/usr/bin/g++")
    told = speed.compile_in_place(config(compile_model=True), module, CPU)
    assert told == "compile_model: the first steps compile the model, and may take minutes"
    assert module.model._compiled_call_impl is not None
    assert set(module.state_dict()) == names


def test_without_a_compiler_the_model_runs_as_it_is(
    make_config: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed.shutil, "which", lambda name: None)
    said: list[str] = []
    fit(make_config(compile_model=True, epochs=1), say=said.append)
    assert [note for note in said if "compile_model: there is no C++ compiler" in note]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_trains_as_well(make_config: Callable[..., dict[str, Any]]) -> None:
    if speed.why_not_compiled(CPU):
        pytest.skip("no C++ compiler on this machine")
    plain, compiled = fit(make_config()), fit(make_config(compile_model=True))
    assert compiled.metrics["val_loss"] == pytest.approx(plain.metrics["val_loss"], rel=0.2)
    assert compiled.weights is not None


class Sees(Callback):
    """What holds while a run goes on, and how often it validates."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {"num_validations": 0, "num_val_batches": 0}

    def on_train_batch_start(self, trainer: Any, module: Any, *_: Any) -> None:
        self.found["is_deterministic"] = torch.are_deterministic_algorithms_enabled()
        self.found["looks_for_anomalies"] = torch.is_anomaly_enabled()
        self.found["dtype"] = module.dtype
        self.found["learning_rate"] = trainer.optimizers[0].param_groups[0]["lr"]
        self.found["is_monitored"] = any(isinstance(c, PosteriorMetricsMonitor) for c in trainer.callbacks)

    def on_validation_batch_end(self, *_: Any) -> None:
        self.found["num_val_batches"] += 1

    def on_validation_end(self, *_: Any) -> None:
        self.found["num_validations"] += 1

    def on_train_end(self, trainer: Any, *_: Any) -> None:
        self.found["num_steps"] = trainer.global_step


PLAIN = {
    "num_validations": 2,
    "num_val_batches": 4,
    "is_deterministic": False,
    "looks_for_anomalies": False,
    "dtype": torch.float32,
    "learning_rate": 0.01,
    "is_monitored": True,
    "num_steps": 8,
}
"""Two epochs of four train and two val batches."""


@pytest.mark.parametrize(
    ("settings", "changed"),
    [
        ({}, {}),
        ({"deterministic": True}, {"is_deterministic": True}),
        ({"detect_anomaly": True}, {"looks_for_anomalies": True}),
        ({"precision": "bf16-mixed"}, {}),
        ({"precision": "64"}, {"dtype": torch.float64}),
        ({"val_check_interval": 0.5, "limit_val_batches": 0.1}, {"num_validations": 4}),
        ({"val_check_interval": 5, "limit_val_batches": 1}, {"num_validations": 1, "num_val_batches": 1}),
        (
            {"val_check_interval": 0.25, "check_val_every_n_epoch": 2},
            {"num_validations": 4, "num_val_batches": 8},
        ),
        ({"check_val_every_n_epoch": 2}, {"num_validations": 1, "num_val_batches": 2}),
        ({"disable_metrics_monitoring": True}, {"is_monitored": False}),
        (
            {"gradient_accumulation_steps": 2, "scale_learning_rate": "linear"},
            {"num_steps": 4, "learning_rate": 0.02},
        ),
        ({"max_sequence_length": 3, "batch_size": 3}, {"num_steps": 10}),
    ],
    ids=lambda given: " ".join(given),
)
def test_every_setting_trains_and_has_its_effect(
    make_config: Callable[..., dict[str, Any]], settings: dict[str, Any], changed: dict[str, Any]
) -> None:
    sees = Sees()
    result = fit(make_config(**settings), callbacks=[sees])
    assert sees.found == {**PLAIN, **changed}
    assert "train_loss" in result.metrics
    assert not torch.are_deterministic_algorithms_enabled()


class ConvolutionsModule(TinyModule):
    def __init__(self, config: Any, data: Any) -> None:
        super().__init__(config, data)
        self.model = nn.Sequential(nn.Conv2d(3, 4, (1, 2)), nn.Flatten(), nn.Linear(4, 1))

    def measure(self, batch: Any) -> Any:
        return super().measure({**batch, "x": batch["x"].reshape(-1, 3, 1, 2)})


class Convolutions(Tiny):
    def module(self, config: Any, data: Any) -> Any:
        Tiny.made = ConvolutionsModule(config, data)
        return Tiny.made


@pytest.mark.parametrize("is_last", [True, False])
def test_channels_last_in_a_run(make_config: Callable[..., dict[str, Any]], is_last: bool) -> None:
    said: list[str] = []
    task = {"task": "tests.train.test_speed:Convolutions", "epochs": 1}
    fit(make_config(**task, channels_last=is_last), say=said.append)
    made: Any = Tiny.made
    assert made.model[0].weight.is_contiguous(memory_format=torch.channels_last) is is_last
    assert not [text for text in said if text.startswith("channels_last")]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"channels_last": True}, "channels_last: the model has no convolutions"),
        ({"sync_batchnorm": True}, "sync_batchnorm: no effect with one device"),
    ],
)
def test_what_has_no_effect_is_said_once(
    make_config: Callable[..., dict[str, Any]], settings: dict[str, Any], told: str
) -> None:
    said: list[str] = []
    fit(make_config(**settings, epochs=1), say=said.append)
    assert len([text for text in said if text.startswith(told)]) == 1
