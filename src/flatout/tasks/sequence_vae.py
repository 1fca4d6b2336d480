"""Sequence VAE: sequences of any length through a small vector, by a transformer that sees no padding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from flatout.augment import draw_keys
from flatout.augment.draws import normals
from flatout.config import Config, list_tasks
from flatout.errors import ConfigError
from flatout.tasks.annealing import charged, kl_of_units, kl_weight
from flatout.tasks.channel_scale import ChannelScale
from flatout.tasks.transformer import Coded, SequenceTransformer
from flatout.train import Batch, Task, TaskData, TaskModule
from flatout.train.optimiser import scaled_rate
from flatout.train.posterior import LOG_VARIANCE, MEAN

DIM, NUM_LAYERS, LATENT_DIM, MOST_HEADS = 128, 2, 32, 4
"""The model's size where the config does not say."""
NUM_FIRST_STEPS = 100
"""Optimiser steps that give the channels' means and deviations, and in which the learning rate grows."""
MOST_GRADIENT = 1.0
"""Norm that gradients are cut to. Without it, and at the full rate from the start, the posterior's means ran
away on pen strokes: 1,000 nats of divergence, 14 % of the variance explained after 400 batches."""
LEAST_LOG_DEVIATION = -4.0
"""Bound of the decoder's own deviation: channels that can be rebuilt exactly would drive it to nothing."""
NO_LIMIT = 2**31 - 1
"""A `max_sequence_length` that no sequence reaches."""
KERNELS = {
    "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    "math": [SDPBackend.MATH],
}
"""What `model.attention` allows, best first: on CUDA the flash kernel takes no mask, and a batch without one is
rare; the CPU has no efficient one."""


class SequenceVAE(Task):
    """Parquet sequences, padded to the longest of their batch; the posterior is watched for collapse."""

    name = "sequence_vae"
    defaults: ClassVar[Mapping[str, Any]] = list_tasks()["sequence_vae"]
    before: ClassVar[Mapping[str, Any]] = {
        "batch_size": 1,
        "num_workers": 2,
        "pin_memory": False,
        "persistent_workers": False,
        "prefetch_factor": 2,
        "max_sequence_length": NO_LIMIT,
        "precision": "32",
        "gradient_accumulation_steps": 1,
        "val_check_interval": 0.05,
        "limit_val_batches": 0.2,
        "monitor.update_frequency": 20,
        "monitor.plot_frequency": 200,
        "monitor.window_size": 100,
        "monitor.verbose": True,
        "save_top_k": 3,
        "use_fast_loader": False,
    }
    after: ClassVar[Mapping[str, Any]] = {
        "batch_size": 4,
        "num_workers": 8,
        "pin_memory": True,
        "persistent_workers": True,
        "max_sequence_length": 1000,
        "use_dynamic_padding": True,
        "precision": "16-mixed",
        "gradient_accumulation_steps": 2,
        "compile_model": False,
        "val_check_interval": 0.1,
        "limit_val_batches": 0.1,
        "monitor.update_frequency": 100,
        "monitor.plot_frequency": 1000,
        "monitor.window_size": 50,
        "monitor.verbose": False,
        "save_top_k": 2,
    }
    reads = (
        "kl_annealing",
        "model.dim",
        "model.num_layers",
        "model.num_heads",
        "model.latent_dim",
        "model.dropout",
        "model.attention",
        "model.params",
    )

    def module(self, config: Config, data: TaskData) -> SequenceVAEModule:
        """A transformer for the channels of the sequence field."""
        return SequenceVAEModule(config, data)


class SequenceVAEModule(TaskModule):
    """The negative evidence bound in nats a step, with a weight on its divergence; 1 gives the bound itself.

    Channels are standardised by the first train batches. Validation counts the divergence in full, whatever the
    annealing has come to: the losses of all epochs, and so the best checkpoint, are comparable.
    """

    def __init__(self, config: Config, data: TaskData) -> None:
        field = data.field_of("sequence")
        num_channels = field.shape[1] if len(field.shape) == 2 else None
        if num_channels is None:
            raise ConfigError(
                f"sequence_vae wants sequences of one number of channels; field '{field.name}' has shape "
                f"{field.shape}. Choose them by fields.{field.name}.columns or .channels"
            )
        super().__init__(config, data, make_model(config, num_channels))
        self._name = field.name
        self.scale = ChannelScale(num_channels)
        self.log_deviation = nn.Parameter(torch.zeros(num_channels))
        """Of what the decoder leaves unexplained, in deviations of the channel; 0 says: all of it."""
        self.latent_dim = config.model.latent_dim or LATENT_DIM
        self.kl_weight = config.kl_annealing.weight
        """What the divergence counts in this step."""
        self._num_steps = 0

    def on_train_start(self) -> None:
        """How many steps the whole run has, of which the annealing takes its share."""
        trainer = self.trainer
        per_epoch = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        self._num_steps = per_epoch * self.config.epochs

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """This step's weight of the divergence; in the first steps also its rate, and the channels' means."""
        step = self.trainer.global_step
        self.kl_weight = kl_weight(self.config.kl_annealing, step, self._num_steps)
        if step < NUM_FIRST_STEPS:
            self.scale.update(batch[self._name], self._mask(batch))
        if step <= NUM_FIRST_STEPS:
            self._set_rate(step)

    def _set_rate(self, step: int) -> None:
        """The learning rate grows over the first steps: full ones from random weights lead astray."""
        rate = scaled_rate(self.config, self.trainer.world_size)
        for optimiser in self.trainer.optimizers:
            for group in optimiser.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / NUM_FIRST_STEPS)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """No step is longer than one in whose direction there is some trust."""
        nn.utils.clip_grad_norm_(self.parameters(), MOST_GRADIENT)

    def on_validation_epoch_end(self) -> None:
        """Log what the annealing has come to."""
        self.log("kl_weight", self.kl_weight, sync_dist=True)

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        """Loss and posterior of each sample; in validation also errors, divergence and those of the mean."""
        mask = self._mask(batch)
        steps = torch.where(mask[:, :, None], self.scale(batch[self._name]), 0.0)
        coded = self.code(steps, mask, batch["key"])
        units = kl_of_units(coded.mean, coded.log_variance)
        lengths = mask.sum(1)
        log_deviation = self.log_deviation.clamp(min=LEAST_LOG_DEVIATION)
        nats = _nats(steps - coded.rebuilt, mask, log_deviation)
        posterior = {MEAN: coded.mean, LOG_VARIANCE: coded.log_variance}
        if self.training:
            paid = charged(units, self.config.kl_annealing.free_nats)
            return {"loss": nats + self.kl_weight * paid / lengths, **posterior}
        kl = units.sum(-1)
        return {
            "loss": nats + self.config.kl_annealing.weight * kl / lengths,
            "kl": kl,
            "error": _error(steps - coded.rebuilt, mask),
            "error_of_mean": _error(steps, mask),
            "loss_of_mean": _nats(steps, mask, torch.zeros_like(log_deviation)),
            **posterior,
        }

    def code(self, steps: Tensor, mask: Tensor, key: Tensor) -> Coded:
        """A pass with the noise of each sample: by key and epoch in training, by key alone otherwise."""
        epoch = self.current_epoch if self.training else 0
        keys = draw_keys(key, seed=self.config.seed, epoch=epoch)
        noise = normals(keys.states, self.latent_dim).to(self.dtype)
        kernels = KERNELS.get(self.config.model.attention)
        with nullcontext() if kernels is None else sdpa_kernel(kernels, set_priority=True):
            coded: Coded = self.model(steps, mask, noise)
        return coded

    def _mask(self, batch: Batch) -> Tensor:
        """(B, T): true where a sequence has a step."""
        steps = batch[self._name]
        at = torch.arange(steps.shape[1], device=steps.device)
        lengths = batch.get(f"{self._name}_length")
        if lengths is None:  # all samples of the data are equally long
            return torch.ones(steps.shape[:2], dtype=torch.bool, device=steps.device)
        return at < lengths[:, None].clamp(min=1)


def make_model(config: Config, num_channels: int) -> SequenceTransformer:
    """The transformer of a config.

    Raises:
        ConfigError: the heads do not divide the width, or there are parameters that it does not have.
    """
    size = config.model
    if size.params:
        raise ConfigError(f"model.params: sequence_vae has no {', '.join(sorted(size.params))}")
    dim = size.dim or DIM
    num_heads = size.num_heads or math.gcd(dim, MOST_HEADS)
    if dim % num_heads:
        raise ConfigError(f"model.num_heads is {num_heads}; wanted a divisor of model.dim, which is {dim}")
    return SequenceTransformer(
        num_channels,
        dim,
        size.num_layers or NUM_LAYERS,
        num_heads,
        size.latent_dim or LATENT_DIM,
        size.dropout or 0.0,
    )


def _nats(apart: Tensor, mask: Tensor, log_deviation: Tensor) -> Tensor:
    """Negative log likelihood a step, (B,), of what a normal distribution of this deviation leaves apart."""
    each = 0.5 * (apart / log_deviation.exp()).square() + log_deviation + 0.5 * math.log(2.0 * math.pi)
    return _mean_over_steps(each.sum(-1), mask)


def _error(apart: Tensor, mask: Tensor) -> Tensor:
    """Mean squared error, (B,), in variances of the channels."""
    return _mean_over_steps(apart.square().mean(-1), mask)


def _mean_over_steps(each: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, each, 0.0).sum(1) / mask.sum(1)
