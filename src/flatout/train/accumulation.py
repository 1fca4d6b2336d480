"""ExactAccumulation: gradients added up over several batches are those of the one large batch, ragged ends
included.

Lightning divides every loss by the number of batches, also where an epoch ends in the middle of them or with a
short batch: the last step then comes out too small. Here each loss is weighted by the samples behind it and the
sum divided by their number, once a step. Ranks whose last batches differ in samples are weighted in the same
way.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from flatout.train.task import Batch

GRADIENTS = "flatout_gradients"
"""Where a checkpoint inside an accumulation keeps what has been added up so far."""


class ExactAccumulation(Callback):
    """Weights losses and rescales gradients; does nothing where every batch counts the same.

    Args:
        num_batches: batches of one step.
        batch_size: what a full batch has; losses of such a batch are left as they are.
        always_masked: samples may be missing in any batch (`on_damage: skip`).
    """

    def __init__(self, num_batches: int, batch_size: int, *, always_masked: bool = False) -> None:
        self._num_batches = num_batches
        self._batch_size = batch_size
        self._always_masked = always_masked
        self._world, self._device = 1, torch.device("cpu")
        self._weight: float | Tensor = 1.0
        self._total: float | Tensor = 0.0
        """Weights of the batches since the last step, in full batches."""
        self._is_uneven = False
        self._is_idle = False
        self._restored: dict[str, Tensor] | None = None
        self._saved_units = self._units

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """One batch a step on one device: its mean is what is wanted. A module that steps by itself, with one
        optimiser or several, says itself which batches make up a step."""
        self._world, self._device = trainer.world_size, trainer.strategy.root_device
        is_one = self._num_batches == 1 and self._world == 1
        self._is_idle = is_one or not pl_module.automatic_optimization

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gradients of a step that a checkpoint interrupted come back."""
        if self._restored is not None:
            factor = self._in_own("full_batch", "num_batches")
            for name, parameter in pl_module.named_parameters():
                if (gradient := self._restored.get(name)) is not None:
                    parameter.grad = gradient.to(parameter.device) * factor
            self._restored = None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """How much of a full batch this one is; a tensor where only the device knows."""
        if self._is_idle:
            return
        num = batch["key"].shape[0]
        self._weight = num / self._batch_size
        # With several ranks always, and so on all of them: what one finds even, another may not, and the sum
        # over ranks waits for all.
        has_ranks = self._world > 1
        if "valid" in batch and (self._always_masked or has_ranks):
            self._weight = batch["valid"].sum() / self._batch_size
        self._is_uneven |= has_ranks or isinstance(self._weight, Tensor) or num != self._batch_size

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """The loss, a mean, becomes a sum over samples in units of a full batch."""
        if self._is_idle:
            return
        self._total = self._total + self._weight
        if isinstance(self._weight, Tensor) or self._weight != 1.0:
            # In place, because Lightning goes on with its own tensor: the division that it has just made, whose
            # backward does not read this value.
            loss.mul_(self._weight)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Divide by the samples there were, instead of by those of `num_batches` full batches."""
        total, is_uneven = self._total, self._is_uneven
        self._total, self._is_uneven = 0.0, False
        if self._is_idle or (not is_uneven and total == self._num_batches):
            return
        if self._world > 1:
            total = _mean_over_ranks(total, self._world, self._device)
        factor = _factor(self._num_batches, total)
        groups = optimizer.param_groups
        gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, factor)

    def state_dict(self) -> dict[str, Any]:
        """How far the current step is, all ranks together, and in which units that is counted."""
        total = self._total
        if self._is_inside and self._world > 1:
            total = _mean_over_ranks(total, self._world, self._device)
        return {"total": float(total), "is_uneven": self._is_uneven, **self._units}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self._saved_units = {name: state_dict.get(name, own) for name, own in self._units.items()}
        self._total = state_dict["total"] * self._in_own("full_batch")
        self._is_uneven = state_dict["is_uneven"]

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """A checkpoint inside a step keeps its gradients: the mean over ranks, which a resume gives to each."""
        if not self._is_inside:
            return
        kept = {}
        for name, parameter in pl_module.named_parameters():
            if self._world > 1 and parameter.requires_grad:  # also without one: ranks add up the same ones
                kept[name] = _mean_over_ranks(_gradient(parameter), self._world, parameter.device)
            elif parameter.grad is not None:
                kept[name] = parameter.grad.detach().clone()
        checkpoint[GRADIENTS] = kept

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """They are put back when training starts."""
        self._restored = checkpoint.get(GRADIENTS)

    @property
    def _is_inside(self) -> bool:
        """Whether batches were added up since the last step; every rank finds the same."""
        return self._is_uneven if self._world > 1 else bool(float(self._total))

    @property
    def _units(self) -> dict[str, int]:
        """Samples of a full batch of all ranks, and batches of a step: what is added up is counted in them."""
        return {"full_batch": self._batch_size * self._world, "num_batches": self._num_batches}

    def _in_own(self, *names: str) -> float:
        """A number of the checkpoint's run, in this run's units."""
        return math.prod(self._saved_units[name] / self._units[name] for name in names)


def _factor(num_batches: int, total: float | Tensor) -> float | Tensor:
    """What gradients are multiplied by; 0 where no sample counted, on any rank. No synchronisation."""
    if isinstance(total, Tensor):
        return torch.where(total > 0, num_batches / total, torch.zeros_like(total))
    return num_batches / total if total else 0.0


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach()


def _mean_over_ranks(value: float | Tensor, world: int, device: torch.device) -> Tensor:
    summed = torch.as_tensor(value, device=device).clone()
    torch.distributed.all_reduce(summed)
    return summed / world
