"""`flatout bench load`: batches a second against the bare gather and against other loaders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from flatout.cli.bench_figures import figures, print_progress
from flatout.cli.options import JsonOption
from flatout.cli.output import console, emit_json

TO_LIMIT = {"signal": 0.85, "image": 0.95, "volume": 0.95, "ragged": 0.6}
TO_BEST_PEER = {"signal": 3.0, "image": 1.2, "volume": 1.1, "ragged": 1.0}
UINT8_TIMES = 1.8
UTILISATION = 0.98
WAIT_SHARE = 0.02
START_MS = 20.0
MANY_S = 0.2
COLD = 0.85
CAPPED = 0.6


def load(
    peers: Annotated[
        bool, typer.Option("--peers", help="Race twelve other ways to load ('make bench' installs them).")
    ] = False,
    case: Annotated[
        list[str] | None, typer.Option(help="signal, image, volume or ragged; may be repeated. Default: all.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Length of one round of one contestant.")] = 2.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; figures are their median.")] = 5,
    share: Annotated[
        float, typer.Option(min=0.0001, max=1, help="Share of the samples, for a quick look.")
    ] = 1.0,
    samples: Annotated[
        int, typer.Option(min=0, help="Samples of the store that is resumed anywhere; 0 leaves it out.")
    ] = 10_000_000,
    accelerator_ms: Annotated[
        list[float] | None, typer.Option(help="A further step time of the simulated accelerator.")
    ] = None,
    main_python_ms: Annotated[
        list[float] | None, typer.Option(help="A further step time of a busy main thread.")
    ] = None,
    cold: Annotated[bool, typer.Option(help="Read cold data, and more data than memory.")] = True,
    scratch: Annotated[Path | None, typer.Option(help="Folder for temporary data, up to 20 GB.")] = None,
    as_json: JsonOption = False,
) -> None:
    """How fast are batches: against a bare gather, against other loaders, cold, and as a training sees them.

    The whole takes about 15 minutes on two cores, with --peers 30. Leave the machine alone meanwhile.
    """
    from flatout.bench import LoadBench, bench_load

    options = LoadBench(
        seconds=seconds,
        rounds=rounds,
        share=share,
        num_samples=samples,
        accelerator_ms=tuple(accelerator_ms or ()),
        main_python_ms=tuple(main_python_ms or ()),
        has_cold=cold,
        has_peers=peers,
        scratch=scratch,
        **({"cases": tuple(case)} if case else {}),
    )
    document = bench_load(options, print_progress)
    if as_json:
        emit_json(document)
    else:
        _show(document)


def _show(document: dict[str, Any]) -> None:
    table = figures("load")
    for row in (*_race_rows(document["cases"]), *_other_rows(document)):
        table.add_row(*row)
    console().print(table)
    for name, found in document["cases"].items():
        console().print(f"{name}: {_rates(found)}", markup=False)


def _race_rows(cases: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, found in cases.items():
        family = name.partition("_")[0]
        if "ratio_to_limit" in found:
            yield f"{name}, share of the limit", f"{found['ratio_to_limit']:.2f}", f">= {TO_LIMIT[family]}"
        if "limit_to_itself" in found:
            yield f"{name}, share that the limit's median has", f"{found['limit_to_itself']:.2f}", ""
        if "ratio_by_round" in found:
            yield f"{name}, share by round", ", ".join(f"{each:.2f}" for each in found["ratio_by_round"]), ""
        if "hand_over_to_limit" in found:
            yield f"{name}, share that a bare hand-over leaves", f"{found['hand_over_to_limit']:.2f}", ""
        if "ratio_to_best_peer" in found:
            what = f"{name}, times the best peer ({found['best_peer']})"
            yield what, f"{found['ratio_to_best_peer']:.2f}", f">= {TO_BEST_PEER[family]}"
        if "ratio_to_float16" in found:
            yield f"{name}, times float16", f"{found['ratio_to_float16']:.2f}", f">= {UINT8_TIMES}"


def _other_rows(document: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, found in document["accelerator"].items():
        yield f"{name}, accelerator busy", f"{found['lowest']:.1%}", f">= {UTILISATION:.0%}"
    for name, found in document["main_python"].items():
        yield f"{name}, busy main thread waits", f"{found['highest']:.1%}", f"<= {WAIT_SHARE:.0%}"
    for name, found in document["start"].items():
        yield f"{name}, first batch of an epoch", f"{found['later_epochs_ms']:.1f} ms", f"<= {START_MS:.0f} ms"
    if many := document.get("many"):
        for what in ("set_epoch_s", "resume_s"):
            yield f"{many['samples']:,} samples, {what[:-2]}", f"{many[what]:.3f} s", f"<= {MANY_S} s"
    for name, found in document.get("cold", {}).items():
        yield f"cold rows of {name}, announced with no loader", f"{found['announced']:.2f}", ""
        for how in ("global", "shard_local"):
            yield f"cold rows of {name}, {how}, of a sequential read", f"{found[how]:.2f}", f">= {COLD}"
    if "ratio" in document.get("capped", {}):
        yield "6 GB in 1 GiB of memory", f"{document['capped']['ratio']:.2f}", f">= {CAPPED}"


def _rates(found: dict[str, Any]) -> str:
    """Samples a second of everybody, the fastest first."""
    rates = {name: each for name, each in found.items() if isinstance(each, dict) and "samples_per_s" in each}
    rates |= found.get("peers", {})
    order = sorted(rates, key=lambda name: -rates[name]["samples_per_s"])
    return ", ".join(f"{name} {rates[name]['samples_per_s']:,.0f}" for name in order) + " samples/s"
