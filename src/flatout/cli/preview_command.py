"""`flatout augment-preview`: original and augmented samples side by side, as a picture or a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.options import ConfigOption, JsonOption, SetOption
from flatout.cli.output import console, emit_json
from flatout.cli.places import check_store
from flatout.cli.view_options import ChainOption, EpochOption, TransformOption, recipe_of, settings_of


def augment_preview(
    store: Annotated[Path, typer.Argument(help="The store's folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .png or .html.")] = Path(
        "preview.png"
    ),
    config: ConfigOption = None,
    split: Annotated[str | None, typer.Option(help="Samples of this split; default: of all.")] = None,
    field: Annotated[str | None, typer.Option(help="What is shown; default: the only one that can be.")] = None,
    transform: TransformOption = None,
    chain: ChainOption = None,
    num_samples: Annotated[int, typer.Option(min=1, help="Samples, spread over the store.")] = 4,
    num_views: Annotated[int, typer.Option(min=1, help="Views of each.")] = 2,
    epoch: EpochOption = 0,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the config's section `augmentation` does to samples of a store.

    Signals as waveform and spectrogram, images as they are, volumes by their three middle slices.
    """
    check_store(store)
    recipe = recipe_of(settings_of(config, set_), transform, chain)
    from flatout.bank import draw_preview

    made = draw_preview(
        store,
        output,
        split=split,
        field=field,
        epoch=epoch,
        num_samples=num_samples,
        num_views=num_views,
        **recipe,
    )
    if as_json:
        emit_json({"output": str(made), "num_samples": num_samples, "num_views": num_views})
    else:
        console().print(f"preview  {made.absolute()}", markup=False)
