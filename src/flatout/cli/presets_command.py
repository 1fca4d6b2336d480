"""`flatout presets`: the ready-made settings by name, and what one of them sets."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from flatout.cli.options import JsonOption
from flatout.cli.output import emit_json, emit_text
from flatout.config import describe_preset, list_presets, to_yaml


def presets(
    name: Annotated[str | None, typer.Argument(help="The preset to print.", show_default=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """List the presets with a line on each, or print what NAME sets, in common and task by task."""
    if name is not None:
        _show(describe_preset(name), as_json)
    elif as_json:
        emit_json(list_presets())
    else:
        width = max(map(len, list_presets()))
        emit_text("\n".join(f"{preset:<{width}}  {summary}" for preset, summary in list_presets().items()))


def _show(described: dict[str, Any], as_json: bool) -> None:
    if as_json:
        emit_json(described)
    else:
        emit_text(to_yaml(described))
