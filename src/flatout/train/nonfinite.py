"""StopAtNonfinite: a loss that is NaN or infinite ends the run at once and names the samples."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from flatout.errors import NonfiniteLossError

LOOK_EVERY = 16
"""Steps between two looks on a device whose results must be waited for: one synchronisation for all of them."""
NUM_NAMED = 8


class _Step(NamedTuple):
    what: str
    step: int
    loss: Tensor
    losses: Tensor | None
    keys: Tensor


class StopAtNonfinite(Callback):
    """Looks at each loss, of training and validation: on the CPU after its step, elsewhere at 16 together, and
    before anything is saved.

    Args:
        names: key hashes in, the samples' keys out.
    """

    def __init__(self, names: Callable[[Sequence[int]], list[str]]) -> None:
        self._names = names
        self._kept: deque[_Step] = deque()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Remember the loss; look where that costs nothing, or after enough of them."""
        given = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
        self._add("the loss", trainer, pl_module, given, batch)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nothing is validated with spoilt weights."""
        self.look(trainer)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        """The same of a validation whose step gives its losses, as that of TaskModule does."""
        if isinstance(outputs, Mapping):
            self._add("the validation loss", trainer, pl_module, outputs, batch)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before early stopping takes it for a reason, and before it decides what is best."""
        self.look(trainer)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Nothing spoilt is saved."""
        self.look(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last steps count, too."""
        self.look(trainer)

    def _add(
        self, what: str, trainer: Trainer, module: LightningModule, given: Mapping[str, Any], batch: Any
    ) -> None:
        loss = given.get("loss")
        is_there = module.device.type == "cpu"  # then reading it waits for nothing, and takes 1 us
        if loss is None or (is_there and math.isfinite(loss)):
            return
        self._kept.append(_Step(what, trainer.global_step, loss, given.get("losses"), batch["key"]))
        if is_there or len(self._kept) >= LOOK_EVERY:
            self.look(trainer)

    def look(self, trainer: Trainer) -> None:
        """Check all losses that are kept.

        Raises:
            NonfiniteLossError: one is not finite.
        """
        kept, self._kept = self._kept, deque()
        if kept and not bool(torch.isfinite(torch.stack([step.loss.float() for step in kept])).all()):
            first = next(step for step in kept if not bool(torch.isfinite(step.loss)))
            raise NonfiniteLossError(self._message(first, trainer))

    def _message(self, step: _Step, trainer: Trainer) -> str:
        bad = step.keys if step.losses is None else step.keys[~torch.isfinite(step.losses)]
        bad = bad if bad.numel() else step.keys  # each is finite, their sum is not
        named = list_samples(self._names, bad)
        rates = sorted({group["lr"] for optimiser in trainer.optimizers for group in optimiser.param_groups})
        told = ", ".join(f"{rate:g}" for rate in rates)
        return (
            f"{step.what} is {step.loss.item()} at step {step.step}. Samples: {named}. "
            f"Precision {trainer.precision}, learning rate {told}. {_first_advice(step)}, or train with "
            "precision: bf16-mixed or 32 instead of 16-mixed. detect_anomaly: true names the operation, slowly"
        )


def _first_advice(step: _Step) -> str:
    is_every = step.losses is not None and not bool(torch.isfinite(step.losses).any())
    if is_every and step.keys.numel() > 1:
        why = "That is the whole batch: weights that a step before has spoilt, rather than samples"
        return f"{why}. Lower learning_rate"
    return "Look at these samples first; if they are sound, lower learning_rate"


def list_samples(names: Callable[[Sequence[int]], list[str]], keys: Tensor) -> str:
    """Key hashes in, the first few keys out, and how many more there are."""
    more = f" and {keys.numel() - NUM_NAMED} more" if keys.numel() > NUM_NAMED else ""
    return ", ".join(names(keys[:NUM_NAMED].tolist())) + more
