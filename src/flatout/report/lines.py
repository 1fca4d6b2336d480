"""Lines over steps, epochs or seconds: one chart for everything that changes while a training runs."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from flatout.report.canvas import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    grid_x,
    grid_y,
    hover,
    make_axis,
    path_of,
    picture,
)
from flatout.report.page import Cell, Chart, Table, number
from flatout.report.quantity import PLAIN, Quantity, number_text
from flatout.report.text import NAME_LENGTH, clipped
from flatout.report.thin import Points, finite, spark, stretches, thin

HEIGHT = 210
MAX_HOVERS = 60
MAX_DOTS = 24
"""More points than that are told by the line alone."""


@dataclass(frozen=True)
class Line:
    """A name and its points."""

    name: str
    points: Points
    colour: str
    """Class of the stylesheet."""
    is_dashed: bool = False


@dataclass(frozen=True)
class Frame:
    """Both axes, and what they count."""

    x: Axis
    y: Axis
    x_name: str
    quantity: Quantity


def line_chart(
    title: str,
    lines: Sequence[Line],
    quantity: Quantity,
    x_name: str,
    *,
    x_quantity: Quantity = PLAIN,
    from_zero: bool = True,
    least_top: float | None = None,
    note: str = "",
) -> Chart | None:
    """A chart of the lines that have points; None where none has.

    Args:
        from_zero: the vertical axis starts at zero, so that heights can be compared.
        least_top: the vertical axis reaches at least that far.
    """
    full = [Line(_name(line), finite(line.points), line.colour, line.is_dashed) for line in lines]
    drawn = [line for line in full if line.points]
    if not drawn:
        return None
    xs = [x for line in drawn for x in (line.points[0][0], line.points[-1][0])]
    ys = [least_top] if least_top is not None else []
    ys += [0.0] * from_zero
    for line in drawn:
        column = [y for _, y in line.points]
        ys += [min(column), max(column)]
    frame = Frame(
        make_axis(xs, x_quantity, LEFT + 4, WIDTH - RIGHT - 4, whole=x_quantity is PLAIN),
        make_axis(ys, quantity, HEIGHT - BOTTOM, TOP),
        x_name,
        quantity,
    )
    table = _table(drawn, frame.y)
    svg = picture(title, _description(table), HEIGHT, _parts(drawn, frame))
    return Chart(title, svg, table, note, {line.name: spark([y for _, y in line.points]) for line in drawn})


def _parts(lines: Sequence[Line], frame: Frame) -> list[str]:
    parts = [*grid_y(frame.y), *grid_x(frame.x, HEIGHT - BOTTOM, frame.x_name)]
    for line in lines:
        places = [(frame.x.place(x), frame.y.place(y)) for x, y in thin(line.points)]
        dash = ' stroke-dasharray="5 4"' if line.is_dashed else ""
        if len(places) > 1:
            parts.append(f'<polyline class="l {line.colour}" points="{path_of(places)}"{dash}/>')
        if len(places) <= MAX_DOTS:
            dots = (f'<circle class="d {line.colour}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places)
            parts.extend(dots)
    return [*parts, *_hovers(lines, frame)]


def _hovers(lines: Sequence[Line], frame: Frame) -> list[str]:
    """A column for each of some dozen places, with the numbers nearest to its middle."""
    xs = sorted({x for line in lines for x, _ in thin(line.points)})
    middles = [stretch[len(stretch) // 2] for stretch in stretches(xs, MAX_HOVERS)]
    places = [frame.x.place(x) for x in middles]
    edges = [LEFT, *((a + b) / 2 for a, b in itertools.pairwise(places)), WIDTH - RIGHT]
    columns = [[x for x, _ in line.points] for line in lines]
    found = []
    for at, x in enumerate(middles):
        told = [f"{frame.x_name} {_x_text(x, frame)}"]
        for line, column in zip(lines, columns, strict=True):
            told.append(f"{line.name}: {frame.quantity.text(line.points[_nearest(column, x)][1])}")
        found.append(hover(edges[at], TOP, edges[at + 1] - edges[at], HEIGHT - TOP - BOTTOM, told))
    return found


def _nearest(xs: Sequence[float], x: float) -> int:
    at = bisect_left(xs, x)
    around = [near for near in (at - 1, at) if 0 <= near < len(xs)]
    return min(around, key=lambda near: abs(xs[near] - x))


def _table(lines: Sequence[Line], axis: Axis) -> Table:
    """In the unit of the axis, which stands at the top: a phone has no room for it in each cell."""
    rows = []
    for line in lines:
        ys = [y for _, y in line.points]
        values = [min(ys), median(ys), max(ys), ys[-1]]
        numbers = [number(number_text(value / axis.size)) for value in values]
        rows.append([Cell(line.name, colour=line.colour), *numbers])
    return Table.of([axis.unit, "least", "median", "most", "last"], rows)


def _description(table: Table) -> str:
    unit, *names = table.headings
    told = []
    for first, *rest in table.rows:
        numbers = ", ".join(
            f"{name} {cell.text} {unit}".rstrip() for name, cell in zip(names, rest, strict=True)
        )
        told.append(f"{first.text}: {numbers}")
    return "; ".join(told)


def _x_text(x: float, frame: Frame) -> str:
    if not frame.x.unit:
        return f"{x:,.0f}" if float(x).is_integer() else number_text(x)
    return f"{number_text(x / frame.x.size)} {frame.x.unit}"


def _name(line: Line) -> str:
    return clipped(line.name, NAME_LENGTH)
