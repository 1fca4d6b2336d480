"""Watch: where the time of a run goes, counted with two clock readings a step and no synchronisation."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from statistics import median
from time import perf_counter_ns
from typing import Any

import psutil
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from flatout.config.monitor import MonitorSection
from flatout.train.record import EpochRow, Look, Speed
from flatout.train.waits import Waits

NUM_STEPS_KEPT = 1000
"""Steps that the median and the 95th percentile are of."""


class Watch(Callback):
    """Counts steps, samples and waits; every `update_frequency` steps it looks at processor and memory.

    Time in validation does not count, nor does the first step, which compiles and warms up. On CUDA a wait is
    the host's: an upper bound of what the device waits, because it works on while the host waits for data.

    Args:
        waits: what the train loader counts.
        monitor: how often to look; None: never.
    """

    def __init__(self, waits: Waits, monitor: MonitorSection | None) -> None:
        self._waits = waits
        self._every = monitor.update_frequency if monitor else 0
        self._process = psutil.Process()
        self._counters = DeviceCounters()
        self.looks: list[Look] = []
        self.epochs: list[EpochRow] = []
        self.first_step_s = 0.0
        self._steps_ns: deque[int] = deque(maxlen=NUM_STEPS_KEPT)
        self._num_steps = self._num_samples = 0
        self._train_ns = self._wait_ns = self._counted_wait_ns = 0
        self._last_ns: int | None = None
        self._loss: Tensor | float | None = None
        self._loss_samples: float | Tensor = 0
        self._loss_epoch = -1
        self._has_validated = False
        """Whether the epoch under way has; otherwise the metrics of a validation are of an earlier one."""
        self._seen: float | Tensor = 0
        """Samples of this rank in the epoch that count, without those of the first step."""
        self._world, self._rank, self._device = 1, 0, torch.device("cpu")
        self._epoch_start = self._look_start = (0, 0, 0)
        self._cpu_start = self._cpu_looked = (0, 0.0)
        """Clock and CPU seconds after the first step, and at the last look."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Which of the processes this is."""
        self._world, self._rank = trainer.world_size, trainer.global_rank
        self._device = trainer.strategy.root_device

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The clock starts; what is waited for the first batch belongs to the first step."""
        self._last_ns = perf_counter_ns()
        self._cpu_start = self._cpu_looked = (self._last_ns, self._cpu_s())

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A new row of the epoch table."""
        self._epoch_start, self._seen, self._has_validated = self._totals(), 0, False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the step up."""
        now = perf_counter_ns()
        num = int(batch["key"].shape[0])
        counted = _counted(batch)
        if trainer.current_epoch != self._loss_epoch:  # not at its start: a resumed epoch has none
            self._loss, self._loss_samples, self._loss_epoch = None, 0, trainer.current_epoch
        self._add_loss(outputs, counted, trainer.accumulate_grad_batches)
        self._num_steps += 1
        wait_ns = self._waits.total_ns - self._counted_wait_ns
        self._counted_wait_ns = self._waits.total_ns
        if self._num_steps == 1:
            self.first_step_s = (now - (self._last_ns or now)) / 1e9
            self._cpu_start = (now, self._cpu_s())
        elif self._last_ns is not None:
            self._steps_ns.append(now - self._last_ns)
            self._train_ns += now - self._last_ns
            self._wait_ns += wait_ns
            self._num_samples += num * self._world  # put right at the end of the epoch
            self._seen = self._seen + counted
        self._last_ns = now
        if self._every and self._num_steps % self._every == 0:
            self._look(trainer, pl_module.device)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training stands still from here ..."""
        if self._last_ns is not None:
            self._train_ns += perf_counter_ns() - self._last_ns
            self._last_ns = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """... to here."""
        self._last_ns, self._has_validated = perf_counter_ns(), True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The epoch's row; here the loss is waited for."""
        loss, samples = self._add_ranks_up()
        _, train_ns, wait_ns = (a - b for a, b in zip(self._totals(), self._epoch_start, strict=True))
        metrics = {
            name: float(value)
            for name, value in trainer.callback_metrics.items()
            if self._has_validated or not name.startswith("val_")
        }
        row = EpochRow(
            epoch=trainer.current_epoch,
            num_epochs=trainer.max_epochs or 0,
            step=trainer.global_step,
            train_loss=loss,
            metrics=metrics,
            samples_per_s=samples / (train_ns / 1e9) if samples else None,
            data_wait_share=wait_ns / train_ns if samples else None,
        )
        self.epochs.append(row)
        for logger in trainer.loggers:
            logger.log_metrics({"epoch": row.epoch, **row.numbers()}, step=trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """The tables, so that a resumed run has them whole, and the loss of the epoch so far, of all ranks."""
        loss, samples = self._over_ranks(0.0 if self._loss is None else self._loss, self._loss_samples)
        return {
            "epochs": [asdict(row) for row in self.epochs],
            "looks": [asdict(look) for look in self.looks],
            "loss": loss if samples else None,
            "loss_samples": samples,
            "loss_epoch": self._loss_epoch,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The rows before the break; the first rank goes on with the sums of all."""
        self.epochs = [EpochRow(**row) for row in state_dict["epochs"]]
        self.looks = [Look(**look) for look in state_dict["looks"]]
        is_first = self._rank == 0
        self._loss = state_dict["loss"] if is_first else None
        self._loss_samples = state_dict["loss_samples"] if is_first else 0
        self._loss_epoch = state_dict["loss_epoch"]

    def live_wait_share(self) -> float:
        """Share of training time spent waiting, so far."""
        return self._wait_ns / self._train_ns if self._train_ns else 0.0

    def speed(self) -> Speed:
        """What the run came to."""
        train_s = self._train_ns / 1e9
        is_measured = train_s > 0 and self._num_samples > 0  # before a validation there is time without a step
        steps = sorted(self._steps_ns)
        started_ns, started_cpu_s = self._cpu_start
        wall_s = (perf_counter_ns() - started_ns) / 1e9
        return Speed(
            num_steps=self._num_steps,
            train_s=train_s,
            first_step_s=self.first_step_s,
            samples_per_s=self._num_samples / train_s if is_measured else None,
            step_ms=median(steps) / 1e6 if steps else None,
            step_p95_ms=steps[int(0.95 * (len(steps) - 1))] / 1e6 if steps else None,
            data_wait_s=self._wait_ns / 1e9,
            data_wait_share=self.live_wait_share() if is_measured else None,
            share_not_waiting=1.0 - self.live_wait_share() if is_measured else None,
            cpu_share=(self._cpu_s() - started_cpu_s) / wall_s if wall_s and self._num_steps else None,
            peak_rss_bytes=max([self._rss(), *(look.rss_bytes for look in self.looks)]),
        )

    def _totals(self) -> tuple[int, int, int]:
        return self._num_samples, self._train_ns, self._wait_ns

    def _add_loss(self, outputs: Any, counted: int | Tensor, num_accumulated: int) -> None:
        """The loss of the epoch, added up on its device; a CPU has it as a number at once, which costs less."""
        given = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
        if (loss := given.get("loss")) is not None:
            value = float(loss) if loss.device.type == "cpu" else loss.detach()
            summed = value * (counted * num_accumulated)  # Lightning has divided it
            self._loss = summed if self._loss is None else self._loss + summed
            self._loss_samples = self._loss_samples + counted

    def _add_ranks_up(self) -> tuple[float | None, int]:
        """Mean loss and number of samples of the epoch, of all ranks: batches by tokens differ in samples."""
        own = 0.0 if self._loss is None else self._loss
        loss, num, seen = self._over_ranks(own, self._loss_samples, self._seen)
        wrong_by = int(seen) - (self._num_samples - self._epoch_start[0])
        self._num_samples += wrong_by
        self._look_start = (self._look_start[0] + wrong_by, *self._look_start[1:])
        return loss / num if num else None, int(seen)

    def _over_ranks(self, *values: float | Tensor) -> list[float]:
        """Sums over ranks, which all ask at the same moment; here the device is waited for."""
        own = [float(value) for value in values]
        if self._world == 1:
            return own
        summed = torch.tensor(own, dtype=torch.float64, device=self._device)
        torch.distributed.all_reduce(summed)
        found: list[float] = summed.tolist()
        return found

    def _look(self, trainer: Trainer, device: torch.device) -> None:
        samples, train_ns, wait_ns = (a - b for a, b in zip(self._totals(), self._look_start, strict=True))
        self._look_start = self._totals()
        before_ns, before_cpu_s = self._cpu_looked
        now_ns, now_cpu_s = self._cpu_looked = (perf_counter_ns(), self._cpu_s())
        look = Look(
            step=trainer.global_step,
            samples_per_s=samples / (train_ns / 1e9) if train_ns else None,
            data_wait_share=wait_ns / train_ns if train_ns else None,
            cpu_share=(now_cpu_s - before_cpu_s) * 1e9 / max(now_ns - before_ns, 1),
            rss_bytes=self._rss(),
            **self._counters.read(device),
        )
        self.looks.append(look)
        for logger in trainer.loggers:
            logger.log_metrics(look.numbers(), step=look.step)

    def _cpu_s(self) -> float:
        return sum(os.times()[:4])  # own and ended children's; psutil reads a file for it

    def _rss(self) -> int:
        return int(self._process.memory_info().rss)


def _counted(batch: Mapping[str, Tensor]) -> int | Tensor:
    """Samples of a batch without those that only fill it up; a tensor where only the device knows."""
    valid = batch.get("valid")
    if valid is None:
        return int(batch["key"].shape[0])
    return int(valid.sum()) if valid.device.type == "cpu" else valid.sum()


class DeviceCounters:
    """Memory and utilisation of a CUDA device, by counters that wait for nothing."""

    def __init__(self) -> None:
        self._tells_utilisation = True

    def read(self, device: torch.device) -> dict[str, Any]:
        """As `Look` names them; nothing of other devices."""
        if device.type != "cuda":
            return {}
        numbers: dict[str, Any] = {"device_bytes": torch.cuda.max_memory_allocated(device)}
        if self._tells_utilisation:
            try:
                numbers["device_utilisation"] = torch.cuda.utilization(device) / 100
            except Exception:  # NVML's errors (a part of a GPU has no counter) have no base but this one
                self._tells_utilisation = False  # `share_not_waiting` stands for it
        return numbers
