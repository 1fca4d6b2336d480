"""The optimiser of a config: AdamW, fused where that is legal, at a rate that may follow the global batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from flatout.config import Config, list_tasks, load_config
from flatout.config.own_task import is_own_task, own_defaults

FUSED_ON = ("cpu", "cuda", "mps", "xpu")
"""Devices that have the fused kernel of AdamW."""


def make_optimiser(
    parameters: Iterable[nn.Parameter], config: Config, rate: float, device: torch.device
) -> torch.optim.AdamW:
    """AdamW over the parameters that are trained."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=rate, fused=is_fused(config, trained, device) or None)


def is_fused(config: Config, parameters: Iterable[torch.Tensor], device: torch.device) -> bool:
    """Whether the fused kernel is wanted and takes these parameters."""
    is_legal = device.type in FUSED_ON and all(p.is_floating_point() for p in parameters)
    return is_legal and config.fused_optimizer is not False


def scaled_rate(config: Config, num_devices: int) -> float:
    """The learning rate; with `scale_learning_rate: linear` in proportion to the global batch.

    It is the config's own at the batch size that the task has by default, on one device, without accumulation.
    """
    if config.scale_learning_rate == "none":
        return config.learning_rate
    batch_size = config.loader_for("train").batch_size
    global_batch = batch_size * num_devices * config.gradient_accumulation_steps
    return config.learning_rate * global_batch / own_batch(config)


def own_batch(config: Config) -> int:
    """The effective batch of the config's task by default: samples of one step."""
    if is_own_task(config.task):
        values = own_defaults(str(config.task), config.config_dir)
    else:
        values = list_tasks().get(str(config.task), {})
    known: dict[str, Any] = {
        key: values[key] for key in ("batch_size", "gradient_accumulation_steps") if key in values
    }
    plain = load_config(known, environ={})
    return plain.batch_size * plain.gradient_accumulation_steps
