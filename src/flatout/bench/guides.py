"""`flatout bench guides`: each row of the guides' tables switched by itself, its effect beside the guide's."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flatout.bench import machine
from flatout.bench.guides_measure import GroupSetting, Mode, Settings, measure_group, mode_of
from flatout.bench.guides_rows import AFTER, ROWS, GuideRow
from flatout.bench.train import data_folder
from flatout.bench.train_sets import GUIDE_CASES, TRAIN_CASES
from flatout.config import load_config
from flatout.errors import ConfigError
from flatout.train.task import load_task

NEEDS_CUDA = "needs CUDA"
LEAST_SAMPLES = {"heart_sound": 1024, "segmentation": 256}
"""Train samples of a task at the least, so that its largest batch is a full one; 64 of others."""
MOST_ROWS = 1200
"""Different samples at the most: the effects are those of a step, and views are made of every one."""


@dataclass(frozen=True)
class GuidesBench:
    """What to measure, and how thoroughly."""

    tasks: tuple[str, ...] = tuple(TRAIN_CASES)
    seconds: float = 1.0
    """Length of one round of one setting, if a single step is not longer."""
    rounds: int = 3
    data: Path | None = None
    """Folder with real samples; None: `../shared/data` where it is, else generated files."""
    scratch: Path | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    """Further settings of every config, as (name, value)."""
    rows: Sequence[GuideRow] = tuple(ROWS)


def bench_guides(options: GuidesBench, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Measure; a document with every row, each with figures or with what it needs.

    Raises:
        ConfigError: there is no such task.
        FlatoutError: a training failed.
    """
    if unknown := set(options.tasks) - set(TRAIN_CASES):
        raise ConfigError(f"no task '{unknown.pop()}'; there are: {', '.join(TRAIN_CASES)}")
    document: dict[str, Any] = {
        "machine": machine.describe(),
        "options": {"seconds": options.seconds, "rounds": options.rounds},
        "rows": [],
    }
    with tempfile.TemporaryDirectory(prefix="flatout-bench-", dir=options.scratch) as folder:
        for task in options.tasks:
            document["rows"] += _measure_task(task, options, Path(folder) / task, say)
    return document


def _measure_task(
    task: str, options: GuidesBench, scratch: Path, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    rows = [row for row in options.rows if row.task == task]
    wanted = [row for row in rows if not row.needs_cuda or torch.cuda.is_available()]
    found: dict[int, dict[str, Any]] = {}
    setting = GroupSetting(options.seconds, options.rounds, say)
    try:
        say(f"{task}: preparing")
        folder = data_folder(options.data)
        config, is_real = GUIDE_CASES[task].prepare(
            task, folder, scratch, LEAST_SAMPLES.get(task, 64), options.settings, MOST_ROWS
        )
        for base, mode in _groups(wanted, config):
            members = [row for row in wanted if _group(row, config) == (base, mode)]
            switches = [(_switched(row, config), row.measure) for row in members]
            measured = measure_group(config, json.loads(base), switches, mode, setting)
            found |= {id(row): figures for row, figures in zip(members, measured, strict=True)}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return [_described(row, config, is_real, found.get(id(row))) for row in rows]


def _groups(rows: Sequence[GuideRow], config: Mapping[str, Any]) -> list[tuple[str, Mode]]:
    """What is measured together: rows with the same settings on the other side, in the same way."""
    return list(dict.fromkeys(_group(row, config) for row in rows))


def _group(row: GuideRow, config: Mapping[str, Any]) -> tuple[str, Mode]:
    return json.dumps(base_of(row, config), sort_keys=True), mode_of(row.measure)


def base_of(row: GuideRow, config: Mapping[str, Any]) -> Settings:
    """What the guide began with, and what the row wants on both sides."""
    task = load_task(load_config(config))
    return {**task.before, **_spelled(row.base, task.after)}


def _switched(row: GuideRow, config: Mapping[str, Any]) -> Settings:
    return _spelled(row.switch, load_task(load_config(config)).after)


def _spelled(settings: Mapping[str, Any], after: Mapping[str, Any]) -> Settings:
    """With everything the guide arrived at in place of the word for it."""
    own = {name: value for name, value in settings.items() if name != AFTER}
    return {**(after if AFTER in settings else {}), **own}


def _described(
    row: GuideRow, config: Mapping[str, Any], is_real: bool, figures: dict[str, Any] | None
) -> dict[str, Any]:
    base, switch = base_of(row, config), _switched(row, config)
    return {
        "guide": row.guide,
        "task": row.task,
        "row": row.row,
        "before": {name: base.get(name) for name in switch},
        "after": switch,
        "measure": row.measure,
        "guide_figure": row.figure,
        "is_real": is_real,
        **({"needs": NEEDS_CUDA} if figures is None else figures),
    }
