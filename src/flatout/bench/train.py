"""`flatout bench train`: each task trained from the store, by its standard path, and from resident batches."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.bench import machine
from flatout.bench.train_race import RaceSetting, race
from flatout.bench.train_sets import TRAIN_CASES
from flatout.config import list_tasks
from flatout.errors import ConfigError, FlatoutError

EPOCH_BATCHES = 32
"""Batches of an epoch at the least: what happens between two of them should not decide."""


@dataclass(frozen=True)
class TrainBench:
    """What to measure, and how thoroughly."""

    tasks: tuple[str, ...] = tuple(TRAIN_CASES)
    accelerator_ms: float | None = None
    """Step time of a simulated accelerator that stands for the model; None: the models are trained here."""
    seconds: float = 4.0
    """Length of one round of the store's training, if it is not over before."""
    rounds: int = 5
    data: Path | None = None
    """Folder with real samples; None: `../shared/data` where it is, else generated files."""
    scratch: Path | None = None
    """Folder for temporary data; None: the system's."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Further settings of every config, as (name, value): for a quick look, such as a smaller batch."""


def bench_train(options: TrainBench, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Measure; a document of plain numbers out, with one entry a task.

    Raises:
        ConfigError: there is no such task.
        FlatoutError: a contestant failed, or the paths gave different batches.
    """
    if unknown := set(options.tasks) - set(TRAIN_CASES):
        raise ConfigError(f"no task '{unknown.pop()}'; there are: {', '.join(TRAIN_CASES)}")
    document: dict[str, Any] = {
        "machine": machine.describe(),
        "options": {"seconds": options.seconds, "rounds": options.rounds},
        "tasks": [],
    }
    with tempfile.TemporaryDirectory(prefix="flatout-bench-", dir=options.scratch) as folder:
        for task in options.tasks:
            document["tasks"].append(_measure(task, options, Path(folder) / task, say))
    return document


def data_folder(given: Path | None) -> Path:
    """Where real samples are looked for.

    Raises:
        FlatoutError: a folder was named, and is not there.
    """
    if given is not None and not given.is_dir():
        raise FlatoutError(f"{given} is no folder; leave --data out to take ../shared/data or generated files")
    return given or Path("..", "shared", "data").resolve()


def _measure(task: str, options: TrainBench, scratch: Path, say: Callable[[str], None]) -> dict[str, Any]:
    setting = RaceSetting(options.seconds, options.rounds, options.accelerator_ms, say)
    batch_size = dict(options.settings).get("batch_size", list_tasks()[task]["batch_size"])
    try:
        case = TRAIN_CASES[task]
        say(f"{task}: preparing")
        num_samples = EPOCH_BATCHES * batch_size
        config, is_real = case.prepare(task, data_folder(options.data), scratch, num_samples, options.settings)
        found = race(config, setting)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    say(
        f"{task}: {found['speedup']:.1f} times the standard path, "
        f"{found['ratio_to_resident']:.3f} of resident, {found['fast']['data_wait_share']:.1%} waiting"
    )
    return {"task": task, **found, "is_real": is_real}
