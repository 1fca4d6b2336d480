"""`flatout config`: the settings that a run would have, with canonical names, or their schema."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from flatout.cli.options import ConfigOption, JsonOption, SetOption
from flatout.cli.output import emit_json, emit_text, say
from flatout.config import config_schema, resolve_config, to_yaml


def config(
    config: ConfigOption = None,
    set_: SetOption = None,
    task: Annotated[str | None, typer.Option(help="The task whose defaults apply.")] = None,
    preset: Annotated[str | None, typer.Option(help="The preset whose settings apply.")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of a config file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the resolved config as YAML: every key by its canonical name, with the value it would have."""
    if schema:
        emit_json(config_schema())
        return
    resolved, notes = resolve_config(config or {}, overrides={"task": task, "preset": preset}, sets=set_ or ())
    for note in notes:
        say(note)
    if as_json:
        emit_json(json.loads(resolved.model_dump_json()))
    else:
        emit_text(to_yaml(resolved.model_dump(mode="json")))
