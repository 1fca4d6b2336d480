"""One contestant of a training race: a config and how its batches come in, a training in rounds out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flatout.bench.train_module import MeasuredTask
from flatout.bench.train_monitor import MonitorClock
from flatout.bench.train_resident import Alternating
from flatout.bench.train_rounds import Asked, Exchange, Figures, Rounds
from flatout.config import resolve_config
from flatout.train.ahead import AheadLoader, Passes
from flatout.train.loaders import RunLoaders, open_loaders
from flatout.train.run import Run
from flatout.train.task import load_task
from flatout.train.waits import RunLoader

LOOK_EVERY = 8
"""Steps between two looks of the monitors, so that short rounds have some; more than any training has."""
QUIET: dict[str, Any] = {
    "epochs": 1_000_000,
    "save_top_k": 0,
    "logger": [],
    "limit_val_batches": 0,
    "early_stopping.patience": None,
    "monitor.update_frequency": LOOK_EVERY,
}
"""What a contestant has differently from a training: it never ends, saves and validates nothing."""
OPTIONS = {"limit_test_batches": 0}
SLACK = 3
"""Batches beyond a round's: what is made ahead."""


@dataclass(frozen=True)
class Entry:
    """Who takes part."""

    config: Mapping[str, Any]
    """Settings as in a config file."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """By dotted name; they win over `QUIET`, too."""
    is_alternating: bool = False
    """Rounds come in twos over the same batches, with these in memory in one of them."""
    accelerator_ms: float | None = None
    """How long the simulated accelerator takes; None: the task's own model is trained."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of Lightning's Trainer."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            name: dict(value) if isinstance(value, Mapping) else value for name, value in vars(self).items()
        }


def compete(entry: Entry, exchange: Exchange) -> None:
    """Train as the entry says, in the rounds that `exchange` asks for."""
    config, notes = resolve_config(entry.config, overrides={**QUIET, **entry.overrides})
    task = MeasuredTask(load_task(config), entry.accelerator_ms)
    is_ahead = True if entry.accelerator_ms is not None else None  # it leaves the processor free, as a GPU does
    run = Run(config, task, lambda note: None, lambda row: None, shows_bar=False, augments_ahead=is_ahead)
    loaders = open_loaders(config, entry.config)
    run.note([*notes, *loaders.notes])
    if loaders.is_fast:
        _warm_up(loaders.splits["train"].loader)
    before = None
    if entry.is_alternating:
        batches = Alternating(loaders.splits["train"].loader)
        loaders.splits["train"] = RunLoader(batches)
        before = partial(_alternate, loaders.splits["train"], batches)
    clock = MonitorClock(config.monitor.update_frequency)
    told = _Told(exchange, loaders, run, clock)
    try:
        rounds = Rounds(told, loaders.splits["train"].waits, task, before)
        run.train(loaders, None, None, [clock, rounds], {**OPTIONS, **entry.options})
    finally:
        loaders.close()


def _alternate(loader: RunLoader, batches: Alternating, asked: Asked) -> None:
    """What stands before a round; the batch that is made ahead belongs to the round before."""
    if isinstance(loader.loader, AheadLoader):
        loader.loader.wait()
    if not asked.is_again:
        batches.take(asked.num_warm + asked.steps + SLACK)
    batches.start(asked.is_resident)


def _warm_up(loader: Passes) -> None:
    """The first epoch of a store compares every sample's checksum and maps its pages; all others do not."""
    for _ in loader:
        pass
    loader.set_epoch(0)


@dataclass(frozen=True)
class _Told:
    """Adds to a round's figures what only the whole contestant knows."""

    exchange: Exchange
    loaders: RunLoaders
    run: Run
    clock: MonitorClock

    def __call__(self, figures: Figures) -> Asked:
        # Augmentation is no part of the wait where the training's own thread does it between two steps.
        is_ahead = self.loaders.splits["train"].is_ahead
        augment_s = 0.0 if is_ahead else figures.get("augment_s", 0.0)
        return self.exchange(
            {
                **figures,
                "data_s": figures.get("wait_s", 0.0) + augment_s,
                "monitor": self.clock.figures(),
                "num_samples": self.loaders.data.num_samples["train"],
                "notes": self.run.notes,
            }
        )
