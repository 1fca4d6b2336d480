"""What tasks and presets say: two packaged YAML files, looked up by name."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from flatout.config.layer import Layer
from flatout.config.merge import merge
from flatout.config.own_task import is_own_task, own_defaults
from flatout.config.text import parse_yaml
from flatout.errors import ConfigError


def list_tasks() -> dict[str, dict[str, Any]]:
    """Every task with the settings it has by default."""
    return _read("tasks.yaml")


def list_presets() -> dict[str, str]:
    """Every preset with one line that says what it is for."""
    return {name: entry["summary"] for name, entry in _read("presets.yaml").items()}


def task_layer(task: Any, folder: Path | None = None) -> Layer:
    """The defaults of a task; nothing for a task that is None or unknown.

    Args:
        folder: where the module of a user's own task is looked for, too.

    Raises:
        ConfigError: a user's own task cannot be imported.
    """
    if is_own_task(task):
        return Layer(f"task {task}", own_defaults(task, folder))
    found = list_tasks().get(task) if isinstance(task, str) else None
    return Layer(f"task {task}", found or {})


def label_set_layer(label_set: Any, task: Any) -> Layer:
    """The settings of a public data set: how its patients are divided, its columns and classes."""
    return _entry_layer("label_sets.yaml", label_set, task, f"label_set {label_set}")


def preset_layer(preset: Any, task: Any) -> Layer:
    """The settings of a preset: its common part, and over it what it says for `task`."""
    return _entry_layer("presets.yaml", preset, task, f"preset {preset}")


def _entry_layer(file: str, name: Any, task: Any, origin: str) -> Layer:
    entry = _read(file).get(name) if isinstance(name, str) else None
    if entry is None:
        return Layer(origin, {})
    own = entry.get("tasks", {}).get(task) if isinstance(task, str) else None
    return Layer(origin, merge([Layer(origin, entry["common"]), Layer(origin, own or {})]))


def describe_preset(name: str) -> dict[str, Any]:
    """A preset as it is written down: summary, common, and tasks.

    Raises:
        ConfigError: there is no such preset.
    """
    presets = _read("presets.yaml")
    if name not in presets:
        raise ConfigError(f"there is no preset '{name}'; wanted one of {', '.join(presets)}")
    return {"summary": presets[name]["summary"], "common": presets[name]["common"]} | {
        "tasks": presets[name].get("tasks", {})
    }


@cache
def _read(name: str) -> dict[str, Any]:
    text = (files("flatout.config") / "data" / name).read_text(encoding="utf-8")
    values, _ = parse_yaml(text, name)
    return dict(values)
