"""The optimiser of a config: AdamW, fused where that is legal, at a rate that may follow the global batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from flatout.config import Config, list_tasks, load_config
from flatout.config.own_task import is_own_task, own_defaults

FUSED_ON = ("cpu", "cuda", "mps", "xpu")
"""Devices that have the fused kernel of AdamW."""
OURS = ("learning_rate", "scale_learning_rate", "fused_optimizer")
"""Settings of the optimiser that is made here."""
GIVEN = "given_rate"
"""Beside the rate of a group of parameters: the `learning_rate` of the config, which a checkpoint keeps."""
HOOKS = ("on_before_optimizer_step", "configure_gradient_clipping")
"""Where a module of Lightning clips gradients, or reads them."""


def make_optimiser(
    parameters: Iterable[nn.Parameter],
    config: Config,
    rate: float,
    device: torch.device,
    *,
    is_scaled: bool = False,
) -> torch.optim.AdamW:
    """AdamW over the parameters that are trained; `is_scaled` as `reads_scaled` finds it."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    fused = is_fused(config, trained, device, is_scaled=is_scaled) or None
    return torch.optim.AdamW([{"params": trained, GIVEN: config.learning_rate}], lr=rate, fused=fused)


class FollowRate(Callback):
    """A run that goes on with another `learning_rate` takes it: a checkpoint brings the one that it had.

    In proportion: a rate that was scaled belongs to the global batch, which a resume keeps.
    """

    def __init__(self, rate: float, note: Callable[[str], None]) -> None:
        self._rate, self._note = rate, note

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What was resumed is loaded."""
        groups = [group for optimiser in trainer.optimizers for group in optimiser.param_groups]
        for group in groups:
            before = group.get(GIVEN, self._rate)  # a module's own optimiser has none
            if before != self._rate:
                group["lr"] = self._rate * (group["lr"] / before)
                group[GIVEN] = self._rate
                self._note(f"learning_rate: it was {before:g}, and is {self._rate:g} from here on")


class FollowFused(Callback):
    """A run that goes on takes the kernel that its config gives now: a checkpoint brings the one that it had.

    The optimiser must be made for it: one that is made fused unscales float16's gradients in its own step.
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Before the optimiser is given what was saved."""
        trained = [parameter for parameter in pl_module.parameters() if parameter.requires_grad]
        is_scaled = reads_scaled(pl_module, trainer)
        fused = is_fused(self._config, trained, trainer.strategy.root_device, is_scaled=is_scaled) or None
        for state in checkpoint.get("optimizer_states", ()):
            for group in state["param_groups"]:
                if GIVEN in group:  # not of a module's own optimiser
                    group["fused"] = fused


def is_fused(
    config: Config, parameters: Iterable[torch.Tensor], device: torch.device, *, is_scaled: bool = False
) -> bool:
    """Whether the fused kernel is wanted and takes these parameters."""
    is_wanted = config.fused_optimizer is not False
    return is_wanted and why_not_fused(parameters, device, is_scaled=is_scaled) is None


def why_not_fused(
    parameters: Iterable[torch.Tensor], device: torch.device, *, is_scaled: bool = False
) -> str | None:
    """What forbids the fused kernel; None: nothing."""
    if device.type not in FUSED_ON:
        return f"{device.type} has no fused kernel"
    if not all(parameter.is_floating_point() for parameter in parameters):
        return "the fused kernel takes real numbers only"
    if is_scaled:
        return "gradients are clipped, and in 16-mixed the fused kernel leaves them scaled until its own step"
    return None


def reads_scaled(module: LightningModule, trainer: Trainer) -> bool:
    """Whether gradients that float16 has scaled are clipped, or read by a hook, before the optimiser's step.

    Lightning unscales them before that, except for an optimiser that does so in its step, as a fused one does:
    a bound on their norm would then hold for 65,536 times the norm, and `gradient_clip_val` is refused.
    """
    if str(trainer.precision) != "16-mixed":
        return False
    has_hook = any(getattr(type(module), name) is not getattr(LightningModule, name) for name in HOOKS)
    return has_hook or bool(trainer.gradient_clip_val)


def fused_note(config: Config, module: LightningModule, trainer: Trainer, device: torch.device) -> str | None:
    """Where the fused kernel was asked for and is not used, and where clipping takes it away."""
    if config.fused_optimizer is False:
        return None
    is_scaled = reads_scaled(module, trainer)
    trained = (parameter for parameter in module.parameters() if parameter.requires_grad)
    why = why_not_fused(trained, device, is_scaled=is_scaled)
    is_told = config.fused_optimizer is True or is_scaled
    return f"fused_optimizer: {why}; the ordinary one is used" if why is not None and is_told else None


def rate_note(config: Config) -> str | None:
    """Where the rate was to follow the batch and cannot."""
    if config.scale_learning_rate == "none" or config.loader_for("train").max_tokens is None:
        return None
    return "scale_learning_rate: no effect with max_tokens, whose batches differ in samples"


def own_optimiser_note(config: Config) -> str | None:
    """What the user has set for our optimiser where a module makes one of its own."""
    defaults = _task_defaults(config)
    names = [name for name in OURS if name in config.model_fields_set]
    asked = [name for name in names if name not in defaults or getattr(config, name) != defaults[name]]
    if not asked:
        return None
    return (
        f"{', '.join(asked)}: the module makes an optimiser of its own; no effect, unless it reads them itself"
    )


def scaled_rate(config: Config, num_devices: int) -> float:
    """The learning rate; with `scale_learning_rate: linear` in proportion to the global batch.

    It is the config's own at the batch size that the task has by default, on one device, without accumulation.
    Batches by tokens have no size: the rate stays as it is.
    """
    if config.scale_learning_rate == "none" or config.loader_for("train").max_tokens is not None:
        return config.learning_rate
    batch_size = config.loader_for("train").batch_size
    global_batch = batch_size * num_devices * config.gradient_accumulation_steps
    return config.learning_rate * global_batch / own_batch(config)


def own_batch(config: Config) -> int:
    """The effective batch of the config's task by default: samples of one step."""
    values = _task_defaults(config)
    known: dict[str, Any] = {
        key: values[key] for key in ("batch_size", "gradient_accumulation_steps") if key in values
    }
    plain = load_config(known, environ={})
    return plain.batch_size * plain.gradient_accumulation_steps


def _task_defaults(config: Config) -> Mapping[str, Any]:
    if is_own_task(config.task):
        return own_defaults(str(config.task), config.config_dir)
    return list_tasks().get(str(config.task), {})
