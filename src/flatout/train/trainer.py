"""The Trainer of a config: every setting in Lightning's words, each where it is legal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer

from flatout.config import Config
from flatout.loader.ranks import rank_and_world
from flatout.train.device import Place
from flatout.train.loaders import RunLoaders
from flatout.train.loggers import make_loggers
from flatout.train.speed import benchmark_note, wants_benchmark

LOG_EVERY = 50
"""Steps between two rows of what a module logs by step; Lightning's own default."""


def make_trainer(
    config: Config,
    place: Place,
    precision: str,
    folder: Path,
    loaders: RunLoaders,
    callbacks: Sequence[Callback],
    shows_bar: bool,
    options: Mapping[str, Any],
    notes: list[str],
) -> Trainer:
    """A Trainer.

    Args:
        options: further arguments of Lightning's Trainer, which win.
        notes: what has no effect or was changed is added here.
    """
    settings: dict[str, Any] = {
        "accelerator": place.accelerator,
        "devices": place.devices,
        "strategy": "ddp" if place.num_devices > 1 else "auto",
        "precision": precision,
        "max_epochs": config.epochs,
        "accumulate_grad_batches": config.gradient_accumulation_steps,
        "benchmark": wants_benchmark(config, place.device, loaders.data.fields),
        "deterministic": config.deterministic or None,
        "detect_anomaly": config.detect_anomaly,
        "enable_model_summary": config.enable_model_summary,
        "enable_progress_bar": shows_bar,
        "enable_checkpointing": config.save_top_k != 0,
        "sync_batchnorm": config.sync_batchnorm and place.num_devices > 1,
        "use_distributed_sampler": False,  # our loaders know their rank
        "num_sanity_val_steps": 0,
        "log_every_n_steps": min(LOG_EVERY, num_batches(config, place, loaders, "train")),
        "default_root_dir": folder,
        "logger": make_loggers(config, folder),
        "callbacks": list(callbacks),
        **_validation(config, place, loaders, notes),
    }
    if (note := benchmark_note(config, place.device, loaders.data.fields)) is not None:
        notes.append(note)
    if config.sync_batchnorm and place.num_devices == 1:
        notes.append("sync_batchnorm: no effect with one device")
    return Trainer(**{**settings, **options})


def num_batches(config: Config, place: Place, loaders: RunLoaders, split: str) -> int:
    """Batches of an epoch on each device.

    A loader knows its rank, and how much of the split is its own, once the processes are connected, which
    Lightning does after it has taken these settings.
    """
    known, num_parts = len(loaders.splits[split]), max(1, place.num_devices // rank_and_world()[1])
    is_cut = config.loader_for(split).drop_last
    return known // num_parts if is_cut else -(-known // num_parts)


def _validation(config: Config, place: Place, loaders: RunLoaders, notes: list[str]) -> dict[str, Any]:
    """When and how much is validated."""
    if "val" not in loaders.splits:
        notes.append("there is no val split: nothing is validated, and the newest checkpoint is kept")
        return {"limit_val_batches": 0}
    interval: Any = config.val_check_interval
    settings: dict[str, Any] = {
        "val_check_interval": interval,
        "check_val_every_n_epoch": config.check_val_every_n_epoch,
        "limit_val_batches": _val_batches(config, num_batches(config, place, loaders, "val"), notes),
    }
    if isinstance(interval, int) and interval > num_batches(config, place, loaders, "train"):
        settings["check_val_every_n_epoch"] = None  # then batches are counted across epochs
    return settings


def _val_batches(config: Config, num_batches: int, notes: list[str]) -> int | float:
    """The share, or at least one batch of it: Lightning refuses a share that comes to none."""
    limit = config.limit_val_batches
    if isinstance(limit, float) and 0.0 < limit < 1.0 and int(limit * num_batches) == 0:
        notes.append(
            f"limit_val_batches: {limit:g} of {num_batches} val batches is less than one; one is taken"
        )
        return 1
    return limit
