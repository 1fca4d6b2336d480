"""The optimiser: fused where it is legal, a rate in proportion to the global batch where asked for."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins import MixedPrecision
from tests.train.tiny import Tiny, TinyModule

from flatout.config import Config, load_config
from flatout.tasks.sequence_vae import SequenceVAEModule
from flatout.train import fit
from flatout.train.optimiser import (
    fused_note,
    is_fused,
    make_optimiser,
    rate_note,
    reads_scaled,
    scaled_rate,
)

CPU = torch.device("cpu")


def config(**settings: Any) -> Config:
    return load_config(settings, environ={})


@pytest.mark.parametrize(
    ("settings", "num_devices", "factor"),
    [
        ({"task": "heart_sound"}, 1, 1.0),
        ({"task": "heart_sound", "batch_size": 128}, 1, 2.0),
        ({"task": "heart_sound", "batch_size": 256}, 2, 8.0),
        ({"task": "sequence_vae"}, 1, 1.0),
        ({"task": "sequence_vae", "gradient_accumulation_steps": 1}, 1, 0.5),
        ({"task": "heart_sound", "train_ds": {"batch_size": 32}}, 1, 0.5),
        ({"task": "tests.train.tiny:Tiny", "batch_size": 8}, 1, 2.0),
    ],
)
def test_the_rate_follows_the_global_batch(settings: Any, num_devices: int, factor: float) -> None:
    scaled = config(**settings, learning_rate=1e-3, scale_learning_rate="linear")
    assert scaled_rate(scaled, num_devices) == pytest.approx(factor * 1e-3)
    assert scaled_rate(config(**settings, learning_rate=1e-3), num_devices) == 1e-3


def test_a_rate_that_has_no_batch_to_follow() -> None:
    """Batches by tokens: `batch_size` says nothing."""
    linear = {"task": "heart_sound", "batch_size": 256, "learning_rate": 1e-3, "scale_learning_rate": "linear"}
    assert rate_note(config(**linear)) is None
    assert rate_note(config(task="heart_sound", max_tokens=500)) is None
    by_tokens = config(**linear, max_tokens=500)
    assert scaled_rate(by_tokens, 4) == 1e-3
    told = rate_note(by_tokens)
    assert told == "scale_learning_rate: no effect with max_tokens, whose batches differ in samples"


class OwnOptimiserModule(TinyModule):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class OwnOptimiser(Tiny):
    def module(self, config: Any, data: Any) -> Any:
        return OwnOptimiserModule(config, data)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, None),
        ({"learning_rate": 0.01}, None),  # as the task has it by default
        ({"learning_rate": 0.5, "fused_optimizer": True}, "learning_rate, fused_optimizer: "),
        ({"scale_learning_rate": "linear"}, "scale_learning_rate: "),
    ],
)
def test_a_module_with_an_optimiser_of_its_own(
    make_config: Callable[..., dict[str, Any]], settings: Any, wanted: str | None
) -> None:
    result = fit(make_config(task="tests.train.test_optimiser:OwnOptimiser", epochs=1, **settings))
    told = [text for text in result.notes if "an optimiser of its own" in text]
    assert len(told) == (wanted is not None)
    assert wanted is None or told[0].startswith(wanted)


def test_fused_where_it_is_legal() -> None:
    weights = [torch.nn.Parameter(torch.zeros(3))]
    assert is_fused(config(), weights, CPU)
    assert not is_fused(config(fused_optimizer=False), weights, CPU)
    assert not is_fused(config(fused_optimizer=True), weights, torch.device("meta"))
    whole = [torch.nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False)]
    assert not is_fused(config(), whole, CPU)


def test_frozen_weights_are_left_out() -> None:
    weights = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2), requires_grad=False)]
    optimiser = make_optimiser(weights, config(), 0.5, CPU)
    assert [len(group["params"]) for group in optimiser.param_groups] == [1]
    assert optimiser.param_groups[0]["lr"] == 0.5
    assert optimiser.param_groups[0]["fused"] is True


def test_what_is_said_where_it_is_not_fused() -> None:
    trainer: Any = SimpleNamespace(precision="32-true", gradient_clip_val=None)
    module: Any = object.__new__(TinyModule)
    torch.nn.Module.__init__(module)
    meta = torch.device("meta")
    assert fused_note(config(), module, trainer, meta) is None  # nobody asked
    assert fused_note(config(fused_optimizer=False), module, trainer, meta) is None
    assert fused_note(config(fused_optimizer=True), module, trainer, CPU) is None
    told = fused_note(config(fused_optimizer=True), module, trainer, meta)
    assert told == "fused_optimizer: meta has no fused kernel; the ordinary one is used"


@pytest.mark.parametrize(
    ("kind", "precision", "clip", "wanted"),
    [
        (TinyModule, "16-mixed", None, False),
        (TinyModule, "16-mixed", 0.5, True),
        (TinyModule, "bf16-mixed", 0.5, False),
        (SequenceVAEModule, "16-mixed", None, True),
        (SequenceVAEModule, "32-true", None, False),
    ],
)
def test_who_reads_scaled_gradients(kind: Any, precision: str, clip: float | None, wanted: bool) -> None:
    trainer: Any = SimpleNamespace(precision=precision, gradient_clip_val=clip)
    assert reads_scaled(object.__new__(kind), trainer) is wanted


class ClippedModule(TinyModule):
    """Cuts its gradients, and writes down how long they were."""

    def __init__(self, config: Any, data: Any) -> None:
        super().__init__(config, data)
        self.model[1] = torch.nn.Identity()
        self.norms: list[float] = []

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.norms.append(float(torch.nn.utils.clip_grad_norm_(self.parameters(), 0.5)))


class Clipped(Tiny):
    def module(self, config: Any, data: Any) -> Any:
        Tiny.made = ClippedModule(config, data)
        return Tiny.made


def in_float16() -> dict[str, Any]:
    """Lightning's own plugin, with a scaler that works on the CPU."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    return {"precision": None, "plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}


def test_gradients_are_cut_by_their_own_length(make_config: Callable[..., dict[str, Any]]) -> None:
    config = make_config(task="tests.train.test_optimiser:Clipped", epochs=1)
    said: list[str] = []
    norms = []
    for options in ({}, in_float16()):
        fit(config, trainer_options=options, say=said.append)
        made: Any = Tiny.made
        norms.append(made.norms)
    assert norms[1] == pytest.approx(norms[0], rel=0.05)  # not 4,096 times as long
    (told,) = [text for text in said if text.startswith("fused_optimizer")]
    assert "gradients are clipped" in told


def test_a_bound_of_the_users(make_config: Callable[..., dict[str, Any]]) -> None:
    """Lightning refuses one where the optimiser is fused."""
    said: list[str] = []
    fit(make_config(epochs=1), trainer_options={**in_float16(), "gradient_clip_val": 0.5}, say=said.append)
    assert [text for text in said if text.startswith("fused_optimizer")]


class Fused(Callback):
    """Which kernel the optimiser has when a training begins."""

    def __init__(self) -> None:
        self.found: list[bool | None] = []

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        self.found += [group["fused"] for group in trainer.optimizers[0].param_groups]


@pytest.mark.parametrize(("before", "now"), [("auto", False), (False, "auto")])
def test_a_resume_takes_another_kernel(
    make_config: Callable[..., dict[str, Any]], before: Any, now: Any
) -> None:
    fused = Fused()
    first = fit(make_config(epochs=1, fused_optimizer=before), callbacks=[fused])
    fit(make_config(epochs=2, fused_optimizer=now), resume=first.folder, callbacks=[fused])
    assert fused.found == [None if value is False else True for value in (before, now)]
