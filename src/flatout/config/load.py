"""A config from a file, a mapping and overrides: every layer in its place, then checked as one."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flatout.config.dialect import translate
from flatout.config.explain import explain, refuse_strangers, refuse_switches
from flatout.config.findings import Findings
from flatout.config.layer import Layer
from flatout.config.merge import merge
from flatout.config.overrides import environment_layer, options_layer, sets_layer
from flatout.config.paths import resolve_paths
from flatout.config.presets import label_set_layer, preset_layer, task_layer
from flatout.config.schema import Config
from flatout.config.settle import (
    fast_detection_layer,
    many_workers,
    settle_batch_size,
    settle_guessing,
    settle_workers,
    without_fields,
    yield_to_top_level,
)
from flatout.config.text import read_file
from flatout.config.written import said_values

Source = Config | Mapping[str, Any] | str | Path
"""What a config can be made from."""

_log = logging.getLogger(__name__)


def load_config(
    source: Source,
    *,
    overrides: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The config that `source` and everything over it resolve to; notes are logged as warnings.

    Args:
        source: path of a YAML, JSON or Python-literal file, a mapping, or a Config (kept as it is).
        overrides: settings by dotted name, the strongest; None means not given.
        sets: "a.b=c" texts, as `--set` takes them.
        environ: where FLATOUT_* variables are looked for; absent: the process's.

    Raises:
        ConfigError: lists everything that is wrong, with key, file and line.
    """
    config, notes = resolve_config(source, overrides=overrides, sets=sets, environ=environ)
    for note in notes:
        _log.warning("%s", note)
    return config


def resolve_config(
    source: Source,
    *,
    overrides: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> tuple[Config, list[str]]:
    """As `load_config`, with the notes returned: what was chosen or changed for the user.

    Raises:
        ConfigError: lists everything that is wrong, with key, file and line.
    """
    if isinstance(source, Config) and not overrides and not sets:
        return source, []
    environ = os.environ if environ is None else environ
    findings = Findings()
    folder = _folder(source)
    given = [
        resolve_paths(translate(layer, findings), folder if position == 0 else None, environ, findings)
        for position, layer in enumerate(
            [
                _base_layer(source),
                environment_layer({} if isinstance(source, Config) else environ),
                sets_layer(sets),
                options_layer(overrides or {}),
            ]
        )
    ]
    return _resolve(given, folder, findings), findings.notes


def _resolve(given: list[Layer], folder: Path | None, findings: Findings) -> Config:
    """default < task < preset < file < environment < --set < option, checked as one."""
    chosen = merge(given)
    task, preset = chosen.get("task"), chosen.get("preset")
    code_dir = chosen.get("code_dir")
    own = task_layer(task, Path(code_dir).absolute() if isinstance(code_dir, str) else folder)
    if (label_set := chosen.get("label_set")) is not None:
        own = replace(own, values=merge([own, label_set_layer(label_set, task)]))
    own = without_fields(own, chosen)
    layers = yield_to_top_level([own, preset_layer(preset, task), *given])
    layers = [fast_detection_layer(merge(layers)), *layers]
    merged = merge(layers)
    settle_batch_size(merged, layers)
    settle_guessing(merged, given[0])
    findings.notes += settle_workers(merged, given)
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        findings.problems += explain(error, merged, layers)
    else:
        findings.problems += refuse_switches(config, merged, layers)
        findings.problems += refuse_strangers(config, merged, layers)
    findings.raise_problems()
    findings.notes += many_workers(config)
    config._config_dir = folder
    return config


def _base_layer(source: Source) -> Layer:
    if isinstance(source, Config):
        return Layer("config", said_values(source))
    if isinstance(source, Mapping):
        return Layer("config", dict(source))
    return read_file(Path(source))


def _folder(source: Source) -> Path | None:
    if isinstance(source, Config):
        return source.config_dir
    return None if isinstance(source, Mapping) else Path(source).absolute().parent
