"""Canvas: axes, grids and hover texts that all charts share, as SVG text that follows the page's colours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from flatout.report.quantity import Quantity, number_text
from flatout.report.thin import bounded
from flatout.train.plot import ticks

WIDTH = 400
"""A phone shows it at nine tenths, a desk in two columns at four thirds: 12 units of text stay readable."""
LEFT, RIGHT, TOP, BOTTOM = 48, 10, 22, 36


@dataclass(frozen=True)
class Axis:
    """Values in, places on the canvas out."""

    ticks: tuple[float, ...]
    """In units."""
    size: float
    """Of one unit."""
    unit: str
    start: float
    end: float

    def place(self, value: float) -> float:
        """Where a value of the record stands; values outside stand at the edge."""
        low, high = self.ticks[0], self.ticks[-1]
        share = (value / self.size - low) / (high - low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def make_axis(
    values: Sequence[float], quantity: Quantity, start: float, end: float, *, whole: bool = False
) -> Axis:
    """An axis with round numbers that holds every value; there must be one at least."""
    drawn = [bounded(value) for value in values]
    size, unit = quantity.unit_for(max(abs(value) for value in drawn))
    marks = ticks([value / size for value in drawn], whole=whole)
    return Axis(tuple(marks), size, unit, start, end)


def picture(title: str, description: str, height: float, parts: Iterable[str]) -> str:
    """A whole SVG element; `parts` are markup."""
    return "\n".join(
        [
            f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title><desc>{escape(description)}</desc>",
            *parts,
            "</svg>",
        ]
    )


def grid_y(axis: Axis) -> list[str]:
    """A line and a number for each tick of a vertical axis, and its unit above."""
    parts = [] if not axis.unit else [f'<text class="u" x="0" y="11">{escape(axis.unit)}</text>']
    for tick in axis.ticks:
        y = axis.place(tick * axis.size)
        parts.append(f'<line class="g" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="e" x="{LEFT - 5}" y="{y + 4:.1f}">{_tick_text(tick)}</text>')
    return parts


def grid_x(axis: Axis, bottom: float, name: str) -> list[str]:
    """Numbers below a horizontal axis, and its name."""
    shown = axis.ticks if len(axis.ticks) <= 6 else axis.ticks[::2]
    parts = [_below(axis.place(tick * axis.size), bottom + 15, _tick_text(tick)) for tick in shown]
    label = f"{name}, {axis.unit}" if axis.unit and name else name or axis.unit
    middle = (axis.start + axis.end) / 2
    return [*parts, f'<text class="m u" x="{middle:.1f}" y="{bottom + 30:.1f}">{escape(label)}</text>']


def hover(x: float, y: float, width: float, height: float, lines: Sequence[str]) -> str:
    """A place that says its numbers when it is pointed at."""
    told = escape("\n".join(lines))
    return (
        f'<rect class="h" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}">'
        f"<title>{told}</title></rect>"
    )


def path_of(places: Sequence[tuple[float, float]]) -> str:
    """Points of a polyline or polygon."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _below(x: float, y: float, text: str) -> str:
    """A number in the middle below its place; at either end of the canvas it stays on it."""
    half = 3.6 * len(text)
    if x + half > WIDTH:
        return f'<text class="e" x="{WIDTH}" y="{y:.1f}">{text}</text>'
    return f'<text class="m" x="{max(x, half):.1f}" y="{y:.1f}">{text}</text>'


def _tick_text(tick: float) -> str:
    if tick == 0 or 1e-3 <= abs(tick) < 1e5:
        return f"{tick:,.10g}"
    power = math.floor(math.log10(abs(tick)))
    return f"{number_text(tick / 10.0**power)}e{power}" if abs(power) < 300 else number_text(tick)
