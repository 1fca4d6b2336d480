"""The command that prepares the store of a config, with whatever the run was told beside its file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flatout.config import Config, resolve_config
from flatout.config.source import SourceSettings
from flatout.errors import ConfigError

Source = Config | Mapping[str, Any] | str | Path
"""A Config, a dict, or the path of a config file."""
Command = Callable[[], str]
"""What prepares a store; asked for where a message names it."""
NAMED = ("task", "label_set")
"""What brings fields of its own: named first, and compared with."""
STORE = "preprocessed_data_dir"


def prepare_command(source: Source, config: Config) -> str:
    """What to type to prepare the store of a config.

    Options and `--set` of the run are no part of its file: without them the store would be made elsewhere, or
    never be up to date. Where the file cannot be read without them, all that is set is named.
    """
    given: Source
    if isinstance(source, str | Path):
        start, given = f"flatout prepare --config {shlex.quote(str(source))}", source
        where, named = [], _named(config, _alone(source))
    else:
        start = f"flatout prepare {config.manifest if isinstance(config.manifest, str) else 'MANIFEST'}"
        where, named = [config.preprocessed_data_dir], _named(config, None)
        given = {"manifest": config.manifest, STORE: config.preprocessed_data_dir}
    changed = dict(_changed(config, _alone(given, named)))
    if STORE in changed:
        where = [changed.pop(STORE)]
    place = [f" --output-dir {shlex.quote(str(folder))}" for folder in where if folder]
    sets = [f" --set {shlex.quote(f'{name}={_text(value)}')}" for name, value in {**named, **changed}.items()]
    return "".join([start, *place, *sets])


def _named(config: Config, own: Config | None) -> dict[str, Any]:
    """Task and label set, where the file alone (`own`) has another."""
    found = {name: getattr(config, name) for name in NAMED}
    return {name: value for name, value in found.items() if value and value != getattr(own, name, None)}


def _alone(source: Source, named: Mapping[str, Any] | None = None) -> Config | None:
    """What a source is by itself; None: it is good only with what the run was told beside it."""
    try:
        return resolve_config(source, overrides=named)[0]
    except (ConfigError, OSError):
        return None


def _changed(config: Config, own: Config | None) -> Iterator[tuple[str, Any]]:
    """What a store is made from and with, by dotted name, where it is not as in `own`; None: left out.

    Without `own` all that is set: any of it may be what makes the file a good one.
    """
    kinds = {f"fields.{name}.kind": section.kind for name, section in config.fields.items()}
    there: dict[str, Any] = {}
    if own is None:
        here = kinds | dict(_leaves(config.model_dump(mode="json", exclude=set(NAMED), exclude_unset=True)))
    else:
        keys = {*SourceSettings.model_fields, STORE} - set(NAMED)
        here, there = (dict(_leaves(each.model_dump(mode="json", include=keys))) for each in (config, own))
        told = kinds | dict(_leaves(config.model_dump(mode="json", include=keys, exclude_defaults=True)))
        here = {name: value for name, value in here.items() if name in there or name in told}
    for name, value in here.items():
        field = name.rpartition(".")[0]
        if name in there and there[name] == value:
            continue
        is_left_out = here.get(f"{field}.kind") == "none"  # as null says in a config
        yield (field, None) if is_left_out else (name, value)


def _leaves(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
