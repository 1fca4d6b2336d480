"""What a measured training is made of: a task with its augmentation timed, and a simulated accelerator."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from flatout.bench.load_feed import accelerator_step
from flatout.config import Config
from flatout.train.task import Augment, Batch, SampleTransform, Task, TaskData


class AugmentClock(nn.Module):
    """An augmentation, with its time added up."""

    def __init__(self, inner: Augment) -> None:
        super().__init__()
        self.inner = inner
        self.total_ns = 0

    def forward(self, batch: Batch, epoch: int) -> Batch:
        """As the inner one does it."""
        started = perf_counter_ns()
        made = self.inner(batch, epoch)
        self.total_ns += perf_counter_ns() - started
        return made


class SimulatedAccelerator(LightningModule):
    """Takes so many ms for forward, backward and optimiser, and leaves the processor free meanwhile."""

    def __init__(self, milliseconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.busy_s = 0.0
        self._step = accelerator_step(milliseconds / 1e3)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Be busy; the loss is 0."""
        self.busy_s += self._step()
        losses = self.weight.expand(len(batch["key"]))
        return {"loss": losses.mean(), "losses": losses.detach()}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Nothing is learned, nothing is validated."""

    def configure_optimizers(self) -> Any:
        """One that costs nothing."""
        return torch.optim.SGD(self.parameters(), lr=1e-9)


class MeasuredTask(Task):
    """A task whose augmentation is timed and whose model may be a simulated accelerator."""

    name = "measured"

    def __init__(self, inner: Task, accelerator_ms: float | None = None) -> None:
        self._inner = inner
        self._accelerator_ms = accelerator_ms
        self.clock: AugmentClock | None = None
        self.accelerator: SimulatedAccelerator | None = None

    @property
    def augment_ns(self) -> int:
        """Time in the augmentation of whole batches so far."""
        return 0 if self.clock is None else self.clock.total_ns

    @property
    def busy_s(self) -> float:
        """Time that the simulated accelerator was busy so far."""
        return 0.0 if self.accelerator is None else self.accelerator.busy_s

    def module(self, config: Config, data: TaskData) -> LightningModule:
        """The task's own, or the accelerator."""
        if self._accelerator_ms is None:
            return self._inner.module(config, data)
        self.accelerator = SimulatedAccelerator(self._accelerator_ms)
        return self.accelerator

    def augmentation(self, config: Config, data: TaskData) -> Augment | None:
        """The task's own, timed."""
        inner = self._inner.augmentation(config, data)
        self.clock = None if inner is None else AugmentClock(inner)
        return self.clock

    def sample_transform(self, config: Config, data: TaskData) -> SampleTransform | None:
        """The task's own; it runs inside the loader, whose time is counted as waiting."""
        return self._inner.sample_transform(config, data)
