"""A resolved config as the text of a file, which reads back as it is: no more counts as said than was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.config.loader import SECTION_OF
from flatout.config.own_task import has_module, is_own_task
from flatout.config.paths import absolute_paths
from flatout.config.schema import Config
from flatout.config.settle import IDLE
from flatout.config.text import to_yaml


def said_values(config: Config) -> dict[str, Any]:
    """What file, options, preset and task have said, as plain values."""
    values = config.model_dump(mode="json", exclude_unset=True)
    for name, section in config.fields.items():
        values["fields"][name]["kind"] = section.kind  # a default, but never one to be guessed again
    for place in (values, *(values.get(name, {}) for name in SECTION_OF.values())):
        if place.get("num_workers") == 0:  # what follows from none must not outlive it
            for key in IDLE:
                place.pop(key, None)
    return values


def config_text(config: Config) -> str:
    """YAML with whole paths; defaults are comments.

    As settings they would count as said when the file is read again: a run would tell of each that it has no
    effect on this machine, or with this task.
    """
    said = absolute_paths({**said_values(config), **_code_place(config)})
    rest = to_yaml(_rest(config.model_dump(mode="json"), said))
    comments = "".join(f"# {line}\n" for line in rest.splitlines())
    return f"{to_yaml(said)}\n# Everything else follows from that, or is at its default:\n{comments}"


def _code_place(config: Config) -> dict[str, str]:
    """The folder of the user's own modules, which is not that of the text; none where they are installed."""
    named = [target for target in (config.task, config.transform) if is_own_task(target)]
    places = [place for place in (config.config_dir, Path.cwd()) if place is not None]
    found = next((place for place in places for target in named if has_module(place, str(target))), None)
    return {} if found is None else {"code_dir": str(found)}


def _rest(all_values: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in all_values.items():
        if name not in said:
            found[name] = value
        elif isinstance(value, dict) and (inner := _rest(value, said[name])):
            found[name] = inner
    return found
