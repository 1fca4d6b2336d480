"""`flatout presets`: the ready-made settings by name, and what one of them sets."""

from __future__ import annotations

from typing import Annotated

import typer

from flatout.cli.config_command import as_yaml
from flatout.cli.options import JsonOption
from flatout.cli.output import emit_json, emit_text
from flatout.config import describe_preset, list_presets


def presets(
    name: Annotated[str | None, typer.Argument(help="The preset to print.", show_default=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """List the presets with a line on each, or print what NAME sets, in common and task by task."""
    if name is not None:
        described = describe_preset(name)
        emit_json(described) if as_json else emit_text(as_yaml(described))
        return
    found = list_presets()
    if as_json:
        emit_json(found)
        return
    width = max(len(preset) for preset in found)
    emit_text("\n".join(f"{preset:<{width}}  {summary}" for preset, summary in found.items()))
