"""`flatout precompute-views`: augmented views of every sample, made once, as a store or a file of tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flatout.bank.place import work_folder
from flatout.cli.interruption import telling_what_is_kept
from flatout.cli.options import ConfigOption, JsonOption, SetOption
from flatout.cli.output import console, emit_json
from flatout.cli.places import check_store
from flatout.cli.progress import ProgressBar
from flatout.cli.view_options import ChainOption, EpochOption, TransformOption, recipe_of, settings_of
from flatout.cli.words import count_text, seconds_text
from flatout.units import bytes_text

SHOWN_BAD = 5


def precompute_views(
    store: Annotated[Path, typer.Argument(help="The store's folder.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A folder becomes a store, a .pt file holds plain tensors.")
    ],
    config: ConfigOption = None,
    split: Annotated[str | None, typer.Option(help="Only this split; default: every sample.")] = None,
    field: Annotated[str | None, typer.Option(help="The signal; default: the only one there is.")] = None,
    transform: TransformOption = None,
    chain: ChainOption = None,
    num_views: Annotated[int, typer.Option(min=1, help="Views of each sample.")] = 2,
    num_substructures: Annotated[
        int, typer.Option(min=0, help="Parts of each view, kept beside it; 0: none.")
    ] = 4,
    epoch: EpochOption = 0,
    keep: Annotated[
        list[str] | None, typer.Option(help="A field that goes along; repeatable. Default: labels and numbers.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="none, or float16: half the size.")] = "none",
    num_workers: Annotated[int | None, typer.Option(help="Worker processes; default: one a core.")] = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Augment every sample of a store and keep the result: views and their parts, labels beside them.

    The config's section `augmentation` and its `seed` say what is drawn. Stop it with Ctrl-C whenever you
    like: the same command continues.
    """
    check_store(store)
    settings = settings_of(config, set_)
    with telling_what_is_kept(work_folder(output)), ProgressBar() as progress:
        recipe = recipe_of(settings, transform, chain)
        from flatout.bank import precompute_views as precompute

        made = precompute(
            store,
            output,
            split=split,
            field=field,
            epoch=epoch,
            num_views=num_views,
            num_substructures=num_substructures,
            keep=keep,
            encoding=encoding,  # type: ignore[arg-type]  # checked where it is stored
            num_workers=num_workers,
            progress=progress,
            max_bad_fraction=settings.max_bad_fraction,
            decode_timeout_s=settings.decode_timeout_s,
            **recipe,
        )
    if as_json:
        emit_json(made.to_json())
    else:
        _show(made)


def _show(made: Any) -> None:
    stats = made.stats
    console().print(f"views    {made.output.absolute()}", markup=False)
    console().print(f"fields   {', '.join(made.names)}", markup=False)
    counts = f"{stats.processed - stats.failed:,} made, {stats.unchanged:,} unchanged"
    console().print(f"samples  {count_text(stats.num_samples, 'sample')}: {counts}", markup=False)
    if stats.processed:
        told = (
            f"{seconds_text(stats.wall_s)} ({stats.rows_per_s:,.0f} samples/s), {bytes_text(stats.bytes_out)}"
        )
        console().print(f"time     {told}", markup=False)
    for row in stats.bad[:SHOWN_BAD]:
        console().print(f"bad: {row.key}: {row.stage}: {row.error}", style="red", markup=False)
