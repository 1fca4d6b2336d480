"""`flatout bench`: measure flatout on this machine, against the work itself and against peers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from flatout.bench import PrepareBench, bench_prepare
from flatout.cli.bench_augment import augment
from flatout.cli.bench_clinic import clinic
from flatout.cli.bench_figures import figures, print_progress
from flatout.cli.bench_guides import guides
from flatout.cli.bench_load import load
from flatout.cli.bench_train import train
from flatout.cli.bench_tune import tune
from flatout.cli.options import JsonOption
from flatout.cli.output import console, emit_json

app = typer.Typer(add_completion=False, no_args_is_help=True)
app.command("load")(load)
app.command("augment")(augment)
app.command("clinic")(clinic)
app.command("train")(train)
app.command("tune")(tune)
app.command("guides")(guides)

TARGETS = {"efficiency": 0.85, "safety": 0.05, "nifti": 1.8, "nifti_resampled": 1.25, "wav": 1.7}
MAX_OPEN_S = 1.0
MAX_BYTES_PER_SAMPLE = 100


@app.callback()
def bench() -> None:
    """Measure flatout on this machine."""


@app.command("prepare")
def prepare(
    peers: Annotated[
        bool, typer.Option("--peers", help="Race h5py, MONAI and litdata ('make bench' installs them).")
    ] = False,
    seconds: Annotated[float, typer.Option(min=0.01, help="Length of one timed job.")] = 20.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; figures are their median.")] = 3,
    samples: Annotated[
        int, typer.Option(min=0, help="Samples of the store that is opened; 0 leaves it out.")
    ] = 10_000_000,
    num_workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one a core.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with real samples; default: ../shared/data, or generated.")
    ] = None,
    scratch: Annotated[Path | None, typer.Option(help="Folder for temporary output, up to 20 GB.")] = None,
    as_json: JsonOption = False,
) -> None:
    """How fast is prepare: against decoding alone, against itself without safety, against peers.

    The whole takes about 12 minutes on two cores, with --peers 40. Leave the machine alone meanwhile.
    """
    options = PrepareBench(seconds, rounds, samples, num_workers, data, scratch, has_peers=peers)
    document = bench_prepare(options, print_progress)
    if as_json:
        emit_json(document)
    else:
        _show(document)


BOUNDS = {"limit": "the work alone", "bare": "work and writes alone", "required": "with looks, checks, hashes"}
"""What efficiency could be at the most."""


def _show(document: dict[str, Any]) -> None:
    table = figures("prepare")
    for name, value in document["efficiency"].items():
        table.add_row(f"efficiency {name}", f"{value:.3f}", f">= {TARGETS['efficiency']}")
        for bound, what in BOUNDS.items():
            if found := document.get(f"efficiency_{bound}"):
                table.add_row(f"  {what}", f"{found[name]:.3f}", "")
    table.add_row("safety overhead", f"{document['safety_overhead']:+.1%}", f"<= {TARGETS['safety']:.0%}")
    for name, value in document.get("ratio_to_best_peer", {}).items():
        table.add_row(f"{name}, times the best peer", f"{value:.2f}", f">= {TARGETS[name]}")
    _add_sizes(table, document)
    console().print(table)
    for name, rates in {"flatout": document.get("flatout", {}), **document.get("peers", {})}.items():
        each = ", ".join(f"{case} {found['samples_per_s']:,.0f}" for case, found in rates.items())
        if each:
            console().print(f"{name}: {each} samples/s")


def _add_sizes(table: Table, document: dict[str, Any]) -> None:
    if index := document.get("index"):
        table.add_row(f"open {index['samples']:,} samples", f"{index['open_s']:.2f} s", f"<= {MAX_OPEN_S} s")
        per_sample = f"{index['bytes_per_sample']:.0f} B a sample"
        table.add_row("index in memory", per_sample, f"<= {MAX_BYTES_PER_SAMPLE} B")
    memory = document["worker_memory"]
    above, limit = (f"{memory[name] / 1e6:,.0f} MB" for name in ("above_idle_bytes", "limit_bytes"))
    table.add_row("worker above an idle one", above, f"<= {limit}")
    update = document["update"]
    table.add_row(f"nothing to do, {update['rows']:,} rows", f"{update['unchanged_s']:.1f} s", "")
    table.add_row("scan", f"{update['scan_rows_per_s']:,.0f} rows/s", "")
