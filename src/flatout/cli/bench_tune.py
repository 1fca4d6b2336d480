"""`flatout bench tune`: what `flatout tune` reaches of the best setting, and in what part of the time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flatout.cli.bench_figures import figures, print_progress
from flatout.cli.options import JsonOption
from flatout.cli.output import console, emit_json

REACHED = 0.95
TIME_SHARE = 0.1


def tune(
    workload: Annotated[
        list[str] | None,
        typer.Option(help="small_samples, volumes or slow_decode; may be repeated. Default: all."),
    ] = None,
    budget: Annotated[float, typer.Option(min=0.1, help="Seconds of one tuning.")] = 60.0,
    rounds: Annotated[int, typer.Option(min=1, help="The most rounds of the exhaustive search.")] = 6,
    share: Annotated[
        float, typer.Option(min=0.0001, max=1, help="Share of the samples, for a quick look.")
    ] = 1.0,
    most_workers: Annotated[
        int | None, typer.Option(min=1, help="Workers that the exhaustive search goes up to.")
    ] = None,
    scratch: Annotated[Path | None, typer.Option(help="Folder for temporary data, up to 2 GB.")] = None,
    as_json: JsonOption = False,
) -> None:
    """How good is tuning: against every setting there is, on three workloads.

    Every setting is measured until it is clear which is fastest. The whole takes about 20 minutes on two cores.
    Leave the machine alone meanwhile.
    """
    from flatout.bench import TuneBench, bench_tune

    options = TuneBench(
        budget_s=budget,
        rounds=rounds,
        share=share,
        most_workers=most_workers,
        scratch=scratch,
        **({"workloads": tuple(workload)} if workload else {}),
    )
    document = bench_tune(options, print_progress)
    if as_json:
        emit_json(document)
    else:
        _show(document)


def _show(document: dict[str, Any]) -> None:
    table = figures("tune")
    for name, found in document["workloads"].items():
        table.add_row(f"{name}, of the best setting", f"{found['reached']:.2f}", f">= {REACHED}")
        table.add_row(f"{name}, of the time", f"{found['time_share']:.3f}", f"< {TIME_SHARE}")
    console().print(table)
    for name, found in document["workloads"].items():
        rates = ", ".join(f"{who} {found[who]['samples_per_s']:,.0f}" for who in ("start", "tuned", "best"))
        console().print(f"{name}: {rates} samples/s; {found['num_settings']} settings", markup=False)
