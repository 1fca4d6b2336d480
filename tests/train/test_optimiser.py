"""The optimiser: fused where it is legal, a rate in proportion to the global batch where asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flatout.config import Config, load_config
from flatout.train.optimiser import is_fused, make_optimiser, scaled_rate

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
