"""The training step of a config's task, run by hand, so that a trial has the consumer that a training has."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import psutil
import torch

from flatout.config import Config
from flatout.loader.transfer import Batch
from flatout.train.device import choose_place
from flatout.train.optimiser import make_optimiser
from flatout.train.precision import choose_precision, describe_device

if TYPE_CHECKING:
    from flatout.train.task import TaskData

Step = Callable[[Batch], None]
_HALF = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
NUM_WARM = 2


class TrainStep:
    """A batch in, the weights one step further. Nothing is logged, saved or synchronised.

    Args:
        augments: batches are augmented here, as on the fast path.

    Raises:
        ValueError: the task optimises by hand. Whatever its code raises without a trainer.
    """

    def __init__(self, config: Config, data: TaskData, *, augments: bool = True) -> None:
        from flatout.train.task import load_task  # Lightning comes with it

        self.device = choose_place(config).device
        task = load_task(config)
        self._module = task.module(config, data).to(self.device).train()
        if not self._module.automatic_optimization:
            raise ValueError("it optimises by hand")
        self._optimiser = make_optimiser(self._module.parameters(), config, config.learning_rate, self.device)
        self._augmentation = task.augmentation(config, data) if augments else None
        if isinstance(self._augmentation, torch.nn.Module):
            self._augmentation.to(self.device)
        precision, _ = choose_precision(config.precision, describe_device(self.device, config.precision))
        self._half = _HALF.get(precision)

    def __call__(self, batch: Batch) -> None:
        batch = {name: value.to(self.device, non_blocking=True) for name, value in batch.items()}
        if self._augmentation is not None:
            batch = self._augmentation(batch, 0)
        with self._autocast():
            output: Any = self._module.training_step(batch, 0)
        loss = output["loss"] if isinstance(output, Mapping) else output
        loss.backward()
        self._optimiser.step()
        self._optimiser.zero_grad()

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._half is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self._half)


def nothing(batch: Batch) -> None:
    """The step where loading alone is tuned."""


def finish(device: torch.device | None) -> None:
    """Wait until a device has done what it was given."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def time_step(step: TrainStep, batch: Batch, seconds: float, stretches: int = 1) -> tuple[float, float, float]:
    """Wall seconds of a step on a batch that is there already, its CPU seconds, and those of other threads.

    Args:
        stretches: so many are timed, and the fastest counts.
    """
    for _ in range(NUM_WARM):
        step(batch)
    finish(step.device)
    return min(_time_steps(step, batch, seconds / stretches) for _ in range(stretches))


def _time_steps(step: TrainStep, batch: Batch, seconds: float) -> tuple[float, float, float]:
    process, count = psutil.Process(), 0
    started, thread_s, cpu_s = time.perf_counter(), time.thread_time(), cpu_of(process)
    while not count or time.perf_counter() - started < seconds:
        step(batch)
        count += 1
    finish(step.device)
    wall_s, cpu_s = time.perf_counter() - started, cpu_of(process) - cpu_s
    aside_s = max(0.0, cpu_s - (time.thread_time() - thread_s))
    return wall_s / count, cpu_s / count, aside_s / count


def cpu_of(process: psutil.Process) -> float:
    """CPU seconds of a process and of those that it has started, dead or alive."""
    used = process.cpu_times()
    total = used.user + used.system + used.children_user + used.children_system
    for child in process.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return float(total)
