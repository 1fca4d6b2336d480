"""`flatout bench augment`: samples a second against SciPy, straightforward torch and other libraries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from flatout.cli.bench_figures import figures, print_progress
from flatout.cli.options import JsonOption
from flatout.cli.output import console, emit_json

TO_SCIPY = 25.0
TO_EAGER = 4.0
KEYED_OVERHEAD = 0.05
TO_PEER = 1.5
DURING_REFRESH = 1.05


def augment(
    peers: Annotated[
        bool, typer.Option("--peers", help="Race kornia and MONAI ('make bench' installs them).")
    ] = False,
    seconds: Annotated[float, typer.Option(min=0.001, help="Length of one round of one contestant.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; figures are their median.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """How fast is augmentation: against SciPy sample by sample, straightforward torch, and with --peers others.

    It takes about a minute on two cores, with --peers two. Leave the machine alone meanwhile.
    """
    from flatout.bench import AugmentBench, bench_augment

    document = bench_augment(AugmentBench(seconds, rounds, has_peers=peers), print_progress)
    if as_json:
        emit_json(document)
    else:
        _show(document)


def _show(document: dict[str, Any]) -> None:
    table = figures("augment")
    for row in _rows(document):
        table.add_row(*row)
    console().print(table)
    console().print(_milliseconds("flatout", document["per_op_ms"]), markup=False)
    console().print(
        _milliseconds("straightforward torch", document["eager_reference"]["per_op_ms"]), markup=False
    )


def _rows(document: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    what = f"{document['batch']} signals of {document['length']:,} values"
    yield what, f"{document['flatout']['samples_per_s']:,.0f} samples/s", ""
    yield "signals, times SciPy", f"{document['ratio_to_scipy']:.1f}", f">= {TO_SCIPY:.0f}"
    yield "signals, times straightforward torch", f"{document['ratio_to_eager']:.1f}", f">= {TO_EAGER:.0f}"
    keyed = document["keyed"]
    yield "keys instead of a generator, of the chain", f"{keyed['overhead']:+.1%}", f"<= {KEYED_OVERHEAD:.0%}"
    yield "drawing all parameters, of the chain", f"{keyed['share_of_chain']:.1%}", ""
    ratio = document["view_bank"]["ratio"]
    yield "a step while views are refreshed, times one without", f"{ratio:.2f}", f"<= {DURING_REFRESH}"
    for name in ("image", "volume"):
        if found := document.get(name):
            yield (
                f"{name}s of {' x '.join(map(str, found['shape'][1:]))}",
                f"{found['samples_per_s']:,.1f} samples/s",
                "",
            )
            if "ratio_to_peer" in found:
                yield f"{name}s, times {found['peer']}", f"{found['ratio_to_peer']:.2f}", f">= {TO_PEER}"


def _milliseconds(who: str, operations: dict[str, float]) -> str:
    each = ", ".join(f"{name} {value:.2f}" for name, value in operations.items())
    return f"{who}: {each} ms a batch"
