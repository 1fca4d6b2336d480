"""Columns: a list of numbers, one for each unit or whatever a callback reports by, as bars from zero."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from flatout.report.canvas import BOTTOM, LEFT, RIGHT, TOP, WIDTH, grid_x, grid_y, hover, make_axis, picture
from flatout.report.page import Cell, Chart, Table, number
from flatout.report.quantity import PLAIN, is_finite, number_text
from flatout.report.text import NAME_LENGTH, clipped
from flatout.report.thin import bounded, spark

HEIGHT = 150
MOST = 512
"""Bars that a phone's screen can still tell apart, and that keep a page small."""
MOST_CHARTS = 4
"""Charts of one report; its other lists stay what they are."""
PER = "_per_"
"""`kl_per_unit`: what is counted, and what each number is of."""


def column_charts(report: Mapping[str, Any]) -> tuple[list[Chart], dict[str, Any]]:
    """What a callback reported in; charts of its first lists called `X_per_Y`, and everything else, out."""
    charts: list[Chart] = []
    rest = dict(report)
    for name, values in report.items():
        what, _, of = str(name).partition(PER)
        if len(charts) < MOST_CHARTS and what and of and _are_numbers(values):
            charts.append(column_chart(what.replace("_", " "), of.replace("_", " "), values))
            del rest[name]
    return charts, rest


def column_chart(what: str, of: str, values: Sequence[float]) -> Chart:
    """A bar for each number in its order; beyond `MOST` they are only counted in, and the note says so."""
    every, of = [bounded(value) for value in values], clipped(of, NAME_LENGTH)
    shown = every[:MOST]
    title = clipped(f"{what} by {of}", NAME_LENGTH)
    x = make_axis([0.0, float(len(shown))], PLAIN, LEFT + 4, WIDTH - RIGHT - 4, whole=True)
    y = make_axis([0.0, *shown], PLAIN, HEIGHT - BOTTOM, TOP)
    parts = [*grid_y(y), *grid_x(x, HEIGHT - BOTTOM, of)]
    width, zero = x.place(1.0) - x.place(0.0), y.place(0.0)
    for at, value in enumerate(shown):
        left, end = x.place(float(at)), y.place(value)
        top, height = min(zero, end), max(abs(end - zero), 0.5)  # a bar of nothing is still seen
        place = f'x="{left + 0.1 * width:.1f}" y="{top:.1f}" width="{0.8 * width:.2f}" height="{height:.1f}"'
        parts.append(f'<rect class="d k0" {place}/>')
        parts.append(hover(left, TOP, width, HEIGHT - TOP - BOTTOM, [f"{of} {at}: {number_text(value)}"]))
    numbers = [min(every), median(every), max(every), math.fsum(every)]
    cells = [Cell(title, colour="k0"), *(number(number_text(value)) for value in numbers)]
    told = ", ".join(f"{of} {at}: {number_text(value)}" for at, value in enumerate(shown))
    note = f"Bars for the first {MOST} of {len(every):,}; the numbers are of all." if len(every) > MOST else ""
    table = Table.of(["", "least", "median", "most", "sum"], [cells])
    return Chart(title, picture(title, told, HEIGHT, parts), table, note, {title: spark(shown)})


def _are_numbers(values: Any) -> bool:
    """Whether it is a list that a chart can show; a record may hold anything."""
    return (
        isinstance(values, list)
        and len(values) > 1
        and all(isinstance(v, int | float) and not isinstance(v, bool) and is_finite(v) for v in values)
    )
