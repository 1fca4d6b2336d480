"""`flatout compare`: two runs, or two records of the doctor, side by side."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from flatout.cli.options import JsonOption
from flatout.cli.output import console, emit_json
from flatout.report import Comparison, compare, write_comparison
from flatout.report.comparison import Measure, difference_texts
from flatout.report.gains import times_text
from flatout.report.settings import Difference
from flatout.report.text import NAME_LENGTH, cleaned, clipped

STYLES = {True: "green", False: "red", None: ""}
SHOWN = 40
"""Differing settings on the screen; --json and -o have all."""


def compare_records(
    first: Annotated[
        str, typer.Argument(metavar="RUN_A", help="Run folder, JSON record, or its http address.")
    ],
    second: Annotated[str, typer.Argument(metavar="RUN_B", help="The one to hold against it.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write a page: .html, or .md.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown instead of HTML.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Config, speed, metrics and machine of two runs, or of two records of the doctor."""
    found = compare(first, second)
    if output is not None:
        write_comparison(found, output, markdown or output.suffix.lower() == ".md")
    if as_json:
        emit_json(found.to_json())
        return
    _show(found)
    if output is not None:
        console().print(f"\nreport   {output.absolute()}", markup=False)


def _show(found: Comparison) -> None:
    console().print(_text(found.verdict), style="bold")
    headings = ("", *(clipped(name, NAME_LENGTH) for name in found.names))
    _print("speed", _measures(found.speed, headings))
    _print("metrics", _measures(found.metrics, headings))
    _print("settings that differ", _differences(found.settings, headings))
    _print("machines", _differences(found.machine, headings))


def _print(title: str, table: Table) -> None:
    if table.row_count:
        console().print(f"\n{title}", style="bold")
        console().print(table)


def _measures(measures: Iterable[Measure], headings: Iterable[str]) -> Table:
    table = _table([*headings, "ratio"], numbers=True)
    for each in measures:
        values = (each.quantity.text(each.first), each.quantity.text(each.second))
        ratio = Text(times_text(each.ratio), style=STYLES[each.is_better])
        table.add_row(_text(each.name), *map(Text, values), ratio)
    return table


def _differences(found: tuple[Difference, ...], headings: Iterable[str]) -> Table:
    table = _table(headings, numbers=False)
    for each in found[:SHOWN]:
        table.add_row(_text(each.name), *map(_text, difference_texts(each)))
    if len(found) > SHOWN:
        table.add_row(f"and {len(found) - SHOWN:,} more", "", "")
    return table


def _table(headings: Iterable[str], *, numbers: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for at, heading in enumerate(headings):
        table.add_column(_text(heading), justify="right" if numbers and at else "left", overflow="fold")
    return table


def _text(text: str) -> Text:
    """Names of unknown origin: neither rich's markup nor a terminal's own is obeyed."""
    return Text(cleaned(text))
