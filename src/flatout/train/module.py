"""TaskModule: a LightningModule that asks a task for one thing, the numbers of each sample of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from flatout.config import Config
from flatout.train.optimiser import make_optimiser, reads_scaled, scaled_rate
from flatout.train.posterior import LOG_VARIANCE, MEAN
from flatout.train.task import Batch, TaskData


class TaskModule(LightningModule):
    """Steps, logging and optimiser around `measure`.

    Logged are `val_loss` and `val_NAME` for each other number that `measure` gives, and the same with `test_`.
    The train loss is added up by the run itself, without a synchronisation a step.
    """

    def __init__(self, config: Config, data: TaskData, model: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.fields = dict(data.fields)
        self.model = model
        """What is compiled, brought to channels-last and saved as weights."""

    def measure(self, batch: Batch) -> Mapping[str, Tensor]:
        """A batch on the device in; `loss`, which is trained, and any metrics out, each (B,): one number a
        sample.

        A number that a sample does not have is NaN in a metric, and is left out of its mean. `posterior_mean`
        and `posterior_log_variance`, each (B, D), are no metrics: PosteriorMetricsMonitor watches them.
        """
        raise NotImplementedError

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """The mean loss of the samples that count, and beside it each sample's own."""
        values = self.measure(batch)
        watched = {name: values[name].detach() for name in (MEAN, LOG_VARIANCE) if name in values}
        return {"loss": mean_of(values["loss"], batch), "losses": values["loss"].detach(), **watched}

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Log the means of all numbers as `val_...`; out come the losses, as of a training step."""
        return self._log_means(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the means of all numbers as `test_...`."""
        self._log_means(batch, "test")

    def configure_optimizers(self) -> Any:
        """AdamW with the config's learning rate, fused where the device has it."""
        rate = scaled_rate(self.config, self.trainer.world_size)
        is_scaled = reads_scaled(self, self.trainer)
        return make_optimiser(self.parameters(), self.config, rate, self.device, is_scaled=is_scaled)

    def _log_means(self, batch: Batch, split: str) -> dict[str, Tensor]:
        measured = self.measure(batch)
        for name, values in measured.items():
            if name in (MEAN, LOG_VARIANCE):
                continue
            counted = counted_samples(values, batch) if name == "loss" else counted_metric(values, batch)
            num = counted.numel()
            mean = counted.float().sum() / max(num, 1)
            # Also where none counts: ranks that do not log a name wait for ever for those that do.
            # A float: of whole numbers Lightning rounds the mean over ranks down, 2.5 samples to 2.
            weight: Any = float(num)
            self.log(f"{split}_{name}", mean, on_epoch=True, on_step=False, sync_dist=True, batch_size=weight)
        return {"loss": mean_of(measured["loss"], batch), "losses": measured["loss"]}


def mean_of(values: Tensor, batch: Batch) -> Tensor:
    """(B,) in, the mean over the samples that count out; 0 where none does. No synchronisation."""
    valid = batch.get("valid")
    if valid is None:
        return values.mean()
    # Not a product with 0: a sample that only fills up the batch may well give NaN.
    kept = torch.where(valid, values, torch.zeros_like(values))
    return kept.sum() / valid.sum().clamp(min=1)


def counted_samples(values: Tensor, batch: Batch) -> Tensor:
    """The numbers of the samples that count."""
    valid = batch.get("valid")
    return values if valid is None else values[valid]


def counted_metric(values: Tensor, batch: Batch) -> Tensor:
    """As `counted_samples`, without those that have no such number."""
    counted = counted_samples(values, batch)
    return counted[~counted.isnan()]
