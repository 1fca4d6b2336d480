"""What follows from several settings together: fast detection, fields to guess, loaders without workers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flatout.config.layer import Layer, Path, dotted, word
from flatout.config.loader import SECTION_OF, LoaderSettings, SplitSettings
from flatout.config.merge import winner
from flatout.config.monitor import FAST_DETECTION

MOST_WORKERS = 16
"""More workers than this are rarely faster."""

IDLE = {"prefetch_factor": None, "persistent_workers": False}
"""What worker settings become where there are no workers; torch raises on anything else."""


def fast_detection_layer(merged: dict[Any, Any]) -> Layer:
    """The slower looks that `fast_detection` stands for; weaker than anything said about `monitor`."""
    is_on = str(merged.get("fast_detection")).lower() in ("true", "yes", "on", "1")
    return Layer("fast_detection", {"monitor": dict(FAST_DETECTION)} if is_on else {})


def settle_batch_size(merged: dict[Any, Any], layers: Sequence[Layer]) -> None:
    """Change `merged` so that `batch_size: auto` is a number to begin with and the wish for a better one."""
    if str(merged.get("batch_size")).lower() != "auto":
        return
    given = [layer.values["batch_size"] for layer in layers if "batch_size" in layer.values]
    numbers = [value for value in given if str(value).lower() != "auto"]
    merged["find_batch_size"] = True
    merged["batch_size"] = numbers[-1] if numbers else _default("batch_size")


def without_fields(task: Layer, given: dict[Any, Any]) -> Layer:
    """A task's defaults without its fields, where the config says itself what a sample is.

    It may also change the task's own fields: `fields: {mask: {values: {255: 1}}}` leaves the others as they
    are.
    """
    own, named = task.values.get("fields", {}), given.get("fields") or {}
    if not given.get("transform") and all(_changes(own.get(name), field) for name, field in named.items()):
        return task
    left_out = ("fields", "guess_fields")
    return replace(task, values={key: value for key, value in task.values.items() if key not in left_out})


def _changes(own: Any, given: Any) -> bool:
    """Whether a given field is the task's own with other settings, or left out."""
    if own is None or given is None:
        return own is not None
    return isinstance(given, dict) and given.get("kind", own["kind"]) == own["kind"]


def yield_to_top_level(layers: Sequence[Layer]) -> list[Layer]:
    """Layers in which a split's exception gives way to a stronger layer's word on all splits.

    `--batch-size 4` outdoes a file's `train_ds.batch_size`; within one layer the exception holds.
    """
    outdone: set[Any] = set()
    kept: list[Layer] = []
    for layer in reversed(layers):
        values = {
            name: {key: inner for key, inner in value.items() if key not in outdone}
            if name in SECTION_OF.values() and isinstance(value, dict)
            else value
            for name, value in layer.values.items()
        }
        kept.append(replace(layer, values=values))
        outdone |= layer.values.keys() & LoaderSettings.model_fields.keys()
    return kept[::-1]


def settle_workers(merged: dict[Any, Any], layers: Sequence[Layer]) -> list[str]:
    """Change `merged` so that loaders without workers prefetch nothing; a note for each given value lost."""
    notes: list[str] = []
    for name in SECTION_OF.values():
        section = merged.get(name)
        if isinstance(section, dict) and section.keys() & {"num_workers", *IDLE}:
            if _has_none({**merged, **section}):
                notes += _idle(section, (name,), layers)
            elif _has_none(merged):
                merged[name] = {key: merged.get(key, _default(key)) for key in IDLE} | section
    if _has_none(merged):
        notes += _idle(merged, (), layers)
    return notes


def settle_guessing(merged: dict[Any, Any], base: Layer) -> None:
    """Change `merged` so that fields which only stronger layers than `base` name are merged over the guess.

    `--set fields.age.kind=label` beside a bare manifest is a correction; a file with `fields` is a list.
    """
    if merged.get("fields") and not base.values.get("fields"):
        merged.setdefault("guess_fields", True)


def many_workers(config: SplitSettings) -> list[str]:
    """A note for each number of workers above the cores, or above what ever pays."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most = min(cores, MOST_WORKERS)
    given = {config.num_workers, *(getattr(config, name).num_workers for name in SECTION_OF.values())}
    return [
        f"num_workers: {number} is kept, but more than {most} rarely pay on this machine"
        for number in sorted(number for number in given if isinstance(number, int))
        if number > most
    ]


def _has_none(place: dict[Any, Any]) -> bool:
    return str(place.get("num_workers")) == "0"


def _idle(place: dict[Any, Any], path: Path, layers: Sequence[Layer]) -> list[str]:
    notes = [
        f"{dotted((*path, key))}: {word(place[key])} has no effect with 0 workers; it becomes {word(idle)}"
        for key, idle in IDLE.items()
        if place.get(key, idle) != idle and winner(layers, (*path, key))
    ]
    place |= IDLE
    return notes


def _default(key: str) -> Any:
    return LoaderSettings.model_fields[key].default
