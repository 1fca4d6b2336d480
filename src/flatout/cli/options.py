"""Options that several commands share, so that they are spelled and explained once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="Config file: YAML, JSON, or Python assignments."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set any key, nested ones as a.b=c; repeatable."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document to standard output and nothing else there.")
]
