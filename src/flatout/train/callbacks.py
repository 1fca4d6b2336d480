"""The callbacks of a run in the order that Lightning calls them: what counts first, what saves last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lightning.pytorch import Callback

from flatout.config import Config
from flatout.train.accumulation import ExactAccumulation
from flatout.train.checkpoints import KeepLast, keep_best, stop_early
from flatout.train.loaders import RunLoaders
from flatout.train.nonfinite import StopAtNonfinite
from flatout.train.optimiser import FollowFused, FollowRate
from flatout.train.posterior import PosteriorMetricsMonitor
from flatout.train.progress import EpochEnds, WaitBar
from flatout.train.randomness import StepSeed
from flatout.train.record import CHECKPOINTS, EpochRow
from flatout.train.retune import make_retune
from flatout.train.watch import Watch


def make_callbacks(
    config: Config,
    loaders: RunLoaders,
    folder: Path,
    watch: Watch,
    *,
    on_epoch: Callable[[EpochRow], None],
    note: Callable[[str], None],
    say: Callable[[str], None],
    shows_bar: bool,
) -> list[Callback]:
    """The callbacks that a config asks for.

    Args:
        folder: that of the run.
        on_epoch: takes each epoch's row.
        note: takes what is changed while the run goes on, for its record, too.
        say: takes alarms.
    """
    has_val = "val" in loaders.splits and config.limit_val_batches != 0
    found: list[Callback | None] = [
        StepSeed(config.seed),
        FollowRate(config.learning_rate, note),
        FollowFused(config),
        StopAtNonfinite(loaders.data.names),
        watch,
        EpochEnds(watch, on_epoch),
        WaitBar(watch) if shows_bar else None,
        make_retune(loaders.splits["train"], note) if config.retune else None,
        stop_early(config, has_val=has_val, note=note),
        _posterior(config, folder, say),
        _accumulation(config),
        keep_best(config, folder / CHECKPOINTS, has_val=has_val),
        KeepLast(folder / CHECKPOINTS) if config.save_top_k != 0 else None,
    ]
    return [callback for callback in found if callback is not None]


def _posterior(config: Config, folder: Path, say: Callable[[str], None]) -> PosteriorMetricsMonitor | None:
    if config.disable_metrics_monitoring:
        return None
    return PosteriorMetricsMonitor(**config.monitor.model_dump(), folder=folder, say=say)


def _accumulation(config: Config) -> ExactAccumulation:
    batch_size = config.loader_for("train").batch_size
    is_masked = config.on_damage == "skip"
    return ExactAccumulation(config.gradient_accumulation_steps, batch_size, always_masked=is_masked)
