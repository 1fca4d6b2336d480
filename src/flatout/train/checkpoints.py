"""Checkpoints of a run: the best few by a metric, and the newest, which a killed run continues from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from flatout.config import Config
from flatout.errors import ConfigError, TrainError
from flatout.train.fetch import is_address, local_file
from flatout.train.record import CHECKPOINTS, LAST, config_file_of
from flatout.train.weights import read_checkpoint

LAST_EVERY_S = 600.0
"""A killed run loses at most this much, and the rest of a step."""


class KeepLast(Callback):
    """Writes `last.ckpt` after every epoch, and between two whenever ten minutes have passed.

    Only between optimiser steps: a checkpoint inside an accumulation carries gradients, too, added up over all
    ranks.
    """

    def __init__(self, folder: Path, every_s: float = LAST_EVERY_S) -> None:
        self.path = folder / LAST
        self._every_s = every_s
        self._saved_at = monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if it is time."""
        is_between = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 and not trainer.is_last_batch
        if is_between and _ask_first_rank(trainer, monotonic() - self._saved_at >= self._every_s):
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """An epoch is done."""
        self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        trainer.save_checkpoint(self.path)
        self._saved_at = monotonic()


def _ask_first_rank(trainer: Trainer, answer: bool) -> bool:
    """All ranks save, or none: saving waits for all of them."""
    return answer if trainer.world_size == 1 else bool(trainer.strategy.broadcast(answer))


class KeepBest(ModelCheckpoint):
    """Knows the best of its own folder only: another run's files are not its to count, or to delete."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What a run that goes on in its folder knew."""
        if state_dict.get("dirpath") == self.dirpath:
            super().load_state_dict(state_dict)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A run that goes on with a smaller `save_top_k` keeps so many; Lightning would never delete again."""
        super().on_train_start(trainer, pl_module)
        worst: Any = max if self.mode == "min" else min
        known = self.best_k_models
        while 0 < self.save_top_k < len(known):
            path = worst(known, key=known.__getitem__)
            del known[path]
            if self._should_remove_checkpoint(trainer, path, ""):
                self._remove_checkpoint(trainer, path)
        if known and len(known) == self.save_top_k:
            self.kth_best_model_path = worst(known, key=known.__getitem__)
            self.kth_value = known[self.kth_best_model_path]


class StopEarly(EarlyStopping):
    """Says why it ends a run, and which metrics there are where the one that it watches is not."""

    def __init__(self, note: Callable[[str], None], **settings: Any) -> None:
        super().__init__(**settings)
        self._note = note

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What it has seen; how long it waits is said by the config of now."""
        super().load_state_dict({**state_dict, "patience": self.patience})

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the metric.

        Raises:
            ConfigError: it was not logged.
        """
        if self.monitor not in trainer.callback_metrics and not trainer.sanity_checking:
            there = ", ".join(trainer.callback_metrics) or "none"
            raise ConfigError(f"early_stopping.metric: '{self.monitor}' is not logged; there are: {there}")
        was_over = trainer.should_stop
        super().on_validation_end(trainer, pl_module)
        if trainer.should_stop and not was_over:
            self._note(self._why(trainer))

    def _why(self, trainer: Trainer) -> str:
        value = float(trainer.callback_metrics[self.monitor])
        times = f"{self.wait_count} validation{'s' if self.wait_count > 1 else ''}"
        least = f" by more than {abs(self.min_delta):g}" if self.min_delta else ""
        reason = f"has not improved{least} for {times}" if math.isfinite(value) else "is not finite"
        return (
            f"early stopping in epoch {trainer.current_epoch + 1} of {trainer.max_epochs}: {self.monitor} "
            f"{reason}; it is {value:.4g}, the best was {float(self.best_score):.4g}"
        )


def keep_best(config: Config, folder: Path, *, has_val: bool) -> KeepBest | None:
    """The `save_top_k` best by the metric that early stopping watches; without a val split, the newest."""
    if config.save_top_k == 0:
        return None
    watched = config.early_stopping
    return KeepBest(
        dirpath=folder,
        filename="{epoch:03d}-{step:06d}",
        monitor=watched.metric if has_val else None,
        mode=watched.mode,
        save_top_k=config.save_top_k if has_val else min(config.save_top_k, 1),
        save_on_train_epoch_end=not has_val,
    )


def stop_early(config: Config, *, has_val: bool, note: Callable[[str], None]) -> StopEarly | None:
    """As the config says; None: the run goes to its last epoch. `note` takes why a run ends."""
    watched = config.early_stopping
    if watched.patience is None or not has_val:
        return None
    return StopEarly(
        note,
        monitor=watched.metric,
        mode=watched.mode,
        patience=watched.patience,
        min_delta=watched.min_delta,
        check_on_train_epoch_end=False,
    )


@contextmanager
def open_checkpoint(resume: str | Path | None) -> Iterator[tuple[str | None, Path | None]]:
    """A run folder, a checkpoint or its http address in; the checkpoint's file, and the run that goes on, out.

    From a folder the run itself goes on; from a checkpoint a new one begins there.

    Raises:
        TrainError: there is none, or it cannot be used.
    """
    if resume is None:
        yield None, None
        return
    folder = None if is_address(resume) or not Path(resume).is_dir() else Path(resume)
    with local_file(resume if folder is None else folder / CHECKPOINTS / LAST) as found:
        if not found.is_file():
            raise TrainError(f"resume: there is no checkpoint at {found}{_what_next(folder)}")
        read_checkpoint(found, named=resume)
        yield str(found), folder


def _what_next(folder: Path | None) -> str:
    """What to do where a checkpoint is not there."""
    config = None if folder is None else config_file_of(folder)
    if config is None:
        return ": give the folder of a run, or one of its checkpoints"
    return (
        f"; the run ended before its first, written after an epoch or {LAST_EVERY_S / 60:.0f} minutes, or has "
        f"save_top_k: 0. Begin anew with --config {config}"
    )
