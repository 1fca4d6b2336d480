"""`flatout bench guides`: what each row of the guides' tables comes to on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from flatout.cli.bench_figures import print_progress
from flatout.cli.options import JsonOption
from flatout.cli.output import console, emit_json
from flatout.units import bytes_text

FROM = {"data_time", "epoch_switch", "epoch_time", "monitor"}
"""Measures whose guide's figure is of less time."""


def guides(
    task: Annotated[
        list[str] | None, typer.Option(help="One of the five tasks; may be repeated. Default: all.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Length of one round of one setting.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; figures are their median.")] = 3,
    data: Annotated[
        Path | None, typer.Option(help="Folder with real samples; default: ../shared/data, or generated.")
    ] = None,
    scratch: Annotated[Path | None, typer.Option(help="Folder for temporary data, about 1 GB.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Switch one row of the guides' tables at a time, and show what it gains beside the guide's figure.

    Each setting is trained for --seconds, --rounds times, in turns with what the guide began with: about 8
    minutes on two cores for all five tasks. Leave the machine alone meanwhile.
    """
    from flatout.bench import GuidesBench, bench_guides
    from flatout.config import list_tasks

    options = GuidesBench(tuple(task or list_tasks()), seconds, rounds, data, scratch)
    document = bench_guides(options, print_progress)
    if as_json:
        emit_json(document)
    else:
        _show(document)


def _show(document: dict[str, Any]) -> None:
    for guide in dict.fromkeys((row["guide"], row["task"]) for row in document["rows"]):
        table = Table(title=f"guide {guide[0]}, {guide[1]}", title_justify="left")
        for name in ("row", "measured", "gain", "the guide's figure"):
            table.add_column(name, no_wrap=name in ("measured", "gain"))
        for row in document["rows"]:
            if (row["guide"], row["task"]) == guide:
                table.add_row(row["row"], *measured(row), row["guide_figure"])
        console().print(table)
    for row in document["rows"]:
        for note in row.get("notes", ()):
            console().print(f"{row['guide']} {row['row']}: {note}", markup=False)


def measured(row: dict[str, Any]) -> tuple[str, str]:
    """From what to what, and how much better that is; or why there is no number."""
    if "needs" in row or "failed" in row:
        return str(row.get("needs") or row["failed"]), ""
    values = " -> ".join(_value(row[side], row["unit"]) for side in ("from", "to"))
    unit = "" if row["unit"] in ("bytes", "of the time", "of a step") else f" {row['unit']}"
    return f"{values}{unit}", _gain(row)


def _value(value: float, unit: str) -> str:
    if unit == "bytes":
        return bytes_text(value)
    if unit in ("of the time", "of a step"):
        return f"{value:.2%}"
    return f"{value:,.1f}" if value >= 1.0 else f"{value:.3f}"


def _gain(row: dict[str, Any]) -> str:
    """As the guides write it: times where it is twice or more, otherwise percent."""
    if row["measure"] == "utilisation":
        return f"{100 * (row['to'] - row['from']):+.1f} points"
    ratio = 1.0 / row["ratio"] if row["measure"] in FROM and row["ratio"] else row["ratio"]
    if row["measure"] != "memory" and ratio >= 2.0:
        return f"{ratio:.1f}x"
    return f"{row['gain']:+.1%}"
