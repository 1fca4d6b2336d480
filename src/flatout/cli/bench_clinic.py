"""`flatout bench clinic`: does the doctor name what is wrong, and foretell what the cure gives?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from flatout.cli.bench_figures import figures, print_progress
from flatout.cli.options import JsonOption
from flatout.cli.output import console, emit_json

MISSES = {"named_first": 1, "gain_within_25pct": 2}
"""How many of twelve may be missed."""
OVERHEAD = 0.02


def clinic(
    scripts: Annotated[
        list[str] | None, typer.Option("--scripts", help="One of the scripts; may be repeated. Default: all.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=1, help="Where sizes and rates are drawn from; default: another each time."),
    ] = None,
    steps: Annotated[int, typer.Option(min=10, help="Training steps that the doctor looks at.")] = 60,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of ill and cured scripts.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Let the doctor examine scripts with one known disease each, and try its first remedy.

    The whole takes about 10 minutes on two cores. Leave the machine alone meanwhile.
    """
    from flatout.bench import ClinicBench, bench_clinic

    document = bench_clinic(ClinicBench(tuple(scripts or ()), seed, steps, rounds), print_progress)
    if as_json:
        emit_json(document)
    else:
        _show(document)


def _show(document: dict[str, Any]) -> None:
    table = figures("clinic")
    number = document["scripts"]
    for name, what in {"named_first": "disease named", "gain_within_25pct": "gain foretold to 25 %"}.items():
        table.add_row(what, f"{document[name]} of {number}", f">= {number - -(-number * MISSES[name] // 12)}")
    table.add_row("healthy, left alone", f"{document['healthy_clean']} of {document['healthy']}", "all")
    if document["overhead"] is not None:
        table.add_row("what looking costs", f"{document['overhead']:.1%}", f"<= {OVERHEAD:.0%}")
    console().print(table)
    for row in document["rows"]:
        console().print(f"{row['script']}: {row['sentence']}", markup=False)
