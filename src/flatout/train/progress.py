"""What is seen while a run goes on: a bar with the share of waiting in it, and one line an epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar

from flatout.train.record import EpochRow
from flatout.train.watch import Watch

BAR_EVERY = 10
"""Steps between two strokes of the bar: drawing it after each would cost a millisecond a step."""


class WaitBar(TQDMProgressBar):
    """Lightning's bar, with the share of time that training waits for data."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(refresh_rate=BAR_EVERY)
        self._watch = watch

    def on_train_epoch_start(self, trainer: Trainer, *args: Any) -> None:
        """Count epochs as the line of each does, from 1."""
        super().on_train_epoch_start(trainer, *args)
        self.train_progress_bar.set_description(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}")

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """What stands at the end of the bar."""
        items = dict(super().get_metrics(trainer, pl_module))
        items.pop("v_num", None)
        return {"waiting for data": f"{self._watch.live_wait_share():.1%}", **items}


class EpochEnds(Callback):
    """Hands each epoch's row over when it is done; stands after Watch in the list of callbacks."""

    def __init__(self, watch: Watch, on_epoch: Callable[[EpochRow], None]) -> None:
        self._watch, self._on_epoch = watch, on_epoch

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The epoch that has just been written down."""
        if trainer.is_global_zero:
            self._on_epoch(self._watch.epochs[-1])


def epoch_line(row: EpochRow) -> str:
    """epoch 3/100: train_loss 0.41, val_loss 0.44, 812 samples/s, 0.3% waiting for data"""
    numbers = {"train_loss": row.train_loss, **row.metrics}
    parts = [f"{name} {value:.4g}" for name, value in numbers.items() if value is not None]
    if row.samples_per_s is not None:
        parts.append(f"{row.samples_per_s:,.0f} samples/s")
    if row.data_wait_share is not None:
        parts.append(f"{row.data_wait_share:.1%} waiting for data")
    return f"epoch {row.epoch + 1}/{row.num_epochs}: {', '.join(parts)}"
