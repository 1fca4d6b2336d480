"""`flatout export`: a store in a format that other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.options import JsonOption
from flatout.cli.output import console, emit_json
from flatout.cli.places import check_store
from flatout.cli.progress import ProgressBar
from flatout.cli.words import count_text
from flatout.store.export import FORMATS, export_store


def export(
    store: Annotated[Path, typer.Argument(help="The store's folder.")],
    output: Annotated[Path, typer.Argument(help="File (hdf5, parquet) or folder to write.")],
    to: Annotated[str, typer.Option(help=f"One of: {', '.join(FORMATS)}.")],
    as_json: JsonOption = False,
) -> None:
    """Write every sample, restored, as one HDF5 file, WebDataset tars, Parquet, TFRecord or LMDB."""
    check_store(store)
    with ProgressBar() as progress:
        num_samples = export_store(store, to, output, progress)
    if as_json:
        emit_json({"samples": num_samples, "format": to, "output": str(output)})
    else:
        console().print(f"{count_text(num_samples, 'sample')} written to {output}", markup=False)
