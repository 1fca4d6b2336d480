"""`flatout precompute-embeddings`: a frozen encoder's outputs as a field of the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flatout.cli.code import load_code
from flatout.cli.interruption import Interrupted
from flatout.cli.options import ConfigOption, JsonOption, SetOption
from flatout.cli.output import console, emit_json
from flatout.cli.places import check_output, check_store
from flatout.cli.progress import ProgressBar
from flatout.cli.view_options import settings_of
from flatout.cli.words import count_text
from flatout.source import hash_file
from flatout.store import compact
from flatout.units import bytes_text


def precompute_embeddings(
    store: Annotated[Path, typer.Argument(help="The store's folder.")],
    encoder: Annotated[
        str,
        typer.Option(metavar="MODULE:NAME", help="A torch module, its class, or a function that makes one."),
    ],
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its weights: .safetensors, .pt, .ckpt.")
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="What the weights' names begin with in it.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Another store; default: a field of this one.")
    ] = None,
    field: Annotated[str | None, typer.Option(help="What goes in; default: the only one there is.")] = None,
    name: Annotated[str, typer.Option(help="The new field's name.")] = "embedding",
    keep: Annotated[
        list[str] | None, typer.Option(help="With --output: a field that goes along; repeatable. Default: all.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples encoded together.")] = 64,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; default: CUDA if there is one.")] = None,
    compact_: Annotated[
        bool, typer.Option("--compact", help="Give back the space of the store without the field.")
    ] = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run every sample through a frozen encoder once, and keep what comes out as a field.

    The store's files are written anew with the field in them, and swapped in at the end: stopped anywhere, it
    is what it was. A checkpoint is read as weights alone; no code in it runs.
    """
    check_store(store)
    if output is not None:
        check_output(output)
    found = load_code(encoder, settings_of(config, set_))
    from flatout.bank import precompute_embeddings as precompute

    origin = {"encoder": encoder, "checkpoint": checkpoint and checkpoint.is_file() and hash_file(checkpoint)}
    try:
        with ProgressBar() as progress:
            made = precompute(
                store,
                found,
                checkpoint=checkpoint,
                prefix=prefix,
                field=field,
                name=name,
                output=output,
                keep=keep,
                batch_size=batch_size,
                device=device,
                origin=origin,
                progress=progress,
            )
    except KeyboardInterrupt as error:
        raise Interrupted("the store is as it was") from error
    freed = compact(store).bytes_freed if compact_ and output is None else 0
    if as_json:
        emit_json({**made.to_json(), "bytes_freed": freed})
    else:
        _show(made, freed)


def _show(made: Any, freed: int) -> None:
    spec = made.field
    console().print(f"store    {made.store.absolute()}", markup=False)
    shape = f"{spec.dtype} {tuple(spec.shape)}"
    console().print(
        f"field    {spec.name}: {shape} for {count_text(made.meta.num_samples, 'sample')}", markup=False
    )
    if freed:
        console().print(f"freed    {bytes_text(freed)}")
