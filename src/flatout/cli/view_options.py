"""What the commands that make views share: options, the config they stand for, and code of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flatout.cli.code import load_code
from flatout.cli.output import say
from flatout.config import Config, resolve_config

TransformOption = Annotated[
    str | None,
    typer.Option(metavar="MODULE:NAME", help="A function of your own: array in, array out; on the CPU."),
]
ChainOption = Annotated[
    str | None,
    typer.Option(metavar="MODULE:NAME", help="Transforms of flatout.augment, or a function that makes them."),
]
EpochOption = Annotated[int, typer.Option(min=0, help="The epoch that the views are drawn for.")]


def settings_of(config: Path | None, sets: list[str] | None) -> Config:
    """The config that a file and --set stand for; what there is to note about it is said."""
    settings, notes = resolve_config(config or {}, sets=sets or ())
    for note in notes:
        say(note)
    return settings


def recipe_of(settings: Config, transform: str | None, chain: str | None) -> dict[str, Any]:
    """What `precompute_views` and `draw_preview` are told about how views are made.

    Raises:
        ConfigError: code that cannot be imported. AugmentError: a chain that is none.
    """
    function = None if transform is None else load_code(transform, settings)
    from flatout.bank.recipe import as_chain

    transforms = None if chain is None else as_chain(load_code(chain, settings))
    return {"transform": function, "chain": transforms, "config": settings, "seed": settings.seed}
