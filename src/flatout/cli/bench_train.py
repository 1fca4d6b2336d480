"""`flatout bench train`: trainings from the store against their standard paths and against resident batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from flatout.cli.bench_figures import figures, print_progress
from flatout.cli.options import JsonOption
from flatout.cli.output import console, emit_json

TO_RESIDENT = 0.97
WAIT_SHARE = 0.02
STEP_TIME = 1.03
MONITOR = 0.01
SPEEDUP = {"heart_sound": 8.0, "segmentation": 3.0}
DATA_TIME = {"cardiac_ct": 21.0}
"""Against the standard path without workers, on a simulated accelerator."""


def train(
    task: Annotated[
        list[str] | None, typer.Option(help="One of the five tasks; may be repeated. Default: all.")
    ] = None,
    accelerator_ms: Annotated[
        float | None,
        typer.Option(min=0.0, help="A simulated accelerator takes so long for each step, the CPU free."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Length of one round.")] = 4.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; figures are their median.")] = 5,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Another batch than the tasks have, for a quick look.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with real samples; default: ../shared/data, or generated.")
    ] = None,
    scratch: Annotated[Path | None, typer.Option(help="Folder for temporary data, about 1 GB.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Does training wait for data: from the store, by the standard path, and with batches that are in memory.

    All five take about 20 minutes on two cores, with --accelerator-ms about 15. Leave the machine alone
    meanwhile.
    """
    from flatout.bench import TrainBench, bench_train
    from flatout.config import list_tasks

    options = TrainBench(
        tasks=tuple(task or list_tasks()),
        accelerator_ms=accelerator_ms,
        seconds=seconds,
        rounds=rounds,
        data=data,
        scratch=scratch,
        settings=() if batch_size is None else (("batch_size", batch_size),),
    )
    document = bench_train(options, print_progress)
    if not as_json:
        _show(document)
    elif task and len(task) == 1:  # a single task is the document itself
        common = {name: value for name, value in document.items() if name != "tasks"}
        emit_json({**document["tasks"][0], **common})
    else:
        emit_json(document)


def _show(document: dict[str, Any]) -> None:
    table = figures("train")
    for found in document["tasks"]:
        for row in _rows(found):
            table.add_row(*row)
    console().print(table)
    for found in document["tasks"]:
        console().print(f"{found['task']}: {_rates(found)}", markup=False)


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    task, has_accelerator = found["task"], found["accelerator_ms"] is not None
    if has_accelerator:
        yield f"{task}, step time, times resident", f"{found['step_time_ratio']:.3f}", f"<= {STEP_TIME}"
    else:
        yield f"{task}, of resident", f"{found['ratio_to_resident']:.3f}", f">= {TO_RESIDENT}"
        yield f"{task}, waiting for data", f"{found['fast']['data_wait_share']:.2%}", f"<= {WAIT_SHARE:.0%}"
        yield f"{task}, monitoring", f"{found['monitor_overhead']:.2%}", f"<= {MONITOR:.0%}"
    for name, what, targets in (
        ("speedup", "times the standard path", SPEEDUP),
        ("data_time_ratio", "times less data time", DATA_TIME),
    ):
        target = f">= {targets[task]:.0f}" if has_accelerator and task in targets else ""
        yield f"{task}, {what}", f"{found[name]:.1f}", target
        yield f"{task}, {what}, 2 workers", f"{found[f'{name}_2_workers']:.1f}", ""


def _rates(found: dict[str, Any]) -> str:
    """What each contestant came to."""
    names = ("resident", "fast", "standard_2_workers", "standard")
    rates = [f"{name} {found[name]['samples_per_s']:,.1f}" for name in names]
    waits = [f"{name} {found[name]['data_ms_per_batch']:.2f}" for name in names[1:]]
    return f"{', '.join(rates)} samples/s; data, ms a batch: {', '.join(waits)}"
