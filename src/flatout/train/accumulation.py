"""ExactAccumulation: gradients added up over several batches are those of the one large batch, ragged ends
included.

Lightning divides every loss by the number of batches, also where an epoch ends in the middle of them or with a
short batch: the last step then comes out too small. Here each loss is weighted by the samples behind it and the
sum divided by their number, once a step. Ranks whose last batches differ in samples are weighted in the same
way.
"""

from __future__ import annotations

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
        self._weight: float | Tensor = 1.0
        self._total: float | Tensor = 0.0
        """Weights of the batches since the last step, in full batches."""
        self._is_uneven = False
        self._is_idle = False
        self._restored: dict[str, Tensor] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """One batch a step on one device: its mean is what is wanted."""
        self._is_idle = self._num_batches == 1 and trainer.world_size == 1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gradients of a step that a checkpoint interrupted come back."""
        if self._restored is not None:
            for name, parameter in pl_module.named_parameters():
                if (gradient := self._restored.get(name)) is not None:
                    parameter.grad = gradient.to(parameter.device)
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
        has_ranks = trainer.world_size > 1
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
        factor = self._num_batches / _mean_over_ranks(total, trainer, pl_module.device)
        groups = optimizer.param_groups
        gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, factor)

    def state_dict(self) -> dict[str, Any]:
        """How far the current step is."""
        return {"total": float(self._total), "is_uneven": self._is_uneven}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self._total, self._is_uneven = state_dict["total"], state_dict["is_uneven"]

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """A checkpoint inside a step keeps its gradients."""
        if float(self._total):
            named = pl_module.named_parameters()
            checkpoint[GRADIENTS] = {name: p.grad.detach().clone() for name, p in named if p.grad is not None}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """They are put back when training starts."""
        self._restored = checkpoint.get(GRADIENTS)


def _mean_over_ranks(total: float | Tensor, trainer: Trainer, device: torch.device) -> float | Tensor:
    if trainer.world_size == 1:
        return total
    summed = torch.as_tensor(total, dtype=torch.float32, device=device).clone()
    torch.distributed.all_reduce(summed)
    return summed / trainer.world_size
