"""Lines and bars as SVG text: no library, a few kilobytes, readable in any browser."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 36, 40
COLOURS = ("#1f5fa8", "#c8571b", "#2d8a4e", "#8a3fa0", "#6b6b6b", "#b8860b")

Points = Sequence[tuple[float, float]]


def write_plot(path: Path, title: str, series: Mapping[str, Points], x_label: str) -> bool:
    """Write the lines that have points; False, and no file, where none has."""
    finite = {name: [(x, y) for x, y in points if math.isfinite(y)] for name, points in series.items()}
    drawn = {name: points for name, points in finite.items() if points}
    if not drawn:
        return False
    path.write_text(_picture(title, drawn, x_label), encoding="utf-8")
    return True


def write_bars(path: Path, title: str, heights: Sequence[float], x_label: str) -> bool:
    """Write one bar for each number, from zero and in their order; False, and no file, where none is finite."""
    found = [(at, height) for at, height in enumerate(heights) if math.isfinite(height)]
    if not found:
        return False
    xs, ys = ticks([0.0, float(len(heights))], whole=True), ticks([0.0, *(height for _, height in found)])
    width = 0.8 * (_across(1.0, xs) - _across(0.0, xs))
    bars = [_bar(_across(at + 0.1, xs), width, _down(0.0, ys), _down(height, ys)) for at, height in found]
    path.write_text("\n".join([*_frame(title, x_label, xs, ys), *bars, "</svg>", ""]), encoding="utf-8")
    return True


def _bar(left: float, width: float, zero: float, end: float) -> str:
    top, height = min(zero, end), max(abs(end - zero), 0.5)  # a bar of nothing is still seen
    place = f'x="{left:.1f}" y="{top:.1f}" width="{width:.2f}" height="{height:.1f}"'
    return f'<rect {place} fill="{COLOURS[0]}"/>'


def _picture(title: str, series: Mapping[str, Points], x_label: str) -> str:
    everything = [point for points in series.values() for point in points]
    xs, ys = ticks([x for x, _ in everything], whole=True), ticks([y for _, y in everything])
    parts = _frame(title, x_label, xs, ys)
    for at, (name, points) in enumerate(series.items()):
        parts.append(_line(name, points, xs, ys, at))
    return "\n".join([*parts, "</svg>", ""])


def _frame(title: str, x_label: str, xs: Sequence[float], ys: Sequence[float]) -> list[str]:
    """What stands around and behind the lines."""
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
        f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>',
        *(_grid_x(x, xs) for x in xs),
        *(_grid_y(y, ys) for y in ys),
    ]


def _line(name: str, points: Points, xs: Sequence[float], ys: Sequence[float], at: int) -> str:
    colour = COLOURS[at % len(COLOURS)]
    places = [(_across(x, xs), _down(y, ys)) for x, y in points]
    text_y = TOP + 14 + 18 * at
    label = f'<text x="{WIDTH - RIGHT + 12}" y="{text_y}" fill="{colour}">{escape(name)}</text>'
    if len(places) == 1:
        return f'<circle cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="3" fill="{colour}"/>{label}'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>{label}'


def _grid_x(x: float, xs: Sequence[float]) -> str:
    at = _across(x, xs)
    return f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle" fill="#555">{x:g}</text>'


def _grid_y(y: float, ys: Sequence[float]) -> str:
    at = _down(y, ys)
    line = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>'
    return f'{line}<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end" fill="#555">{y:g}</text>'


def _across(x: float, xs: Sequence[float]) -> float:
    return LEFT + (x - xs[0]) / (xs[-1] - xs[0]) * (WIDTH - LEFT - RIGHT)


def _down(y: float, ys: Sequence[float]) -> float:
    return HEIGHT - BOTTOM - (y - ys[0]) / (ys[-1] - ys[0]) * (HEIGHT - TOP - BOTTOM)


def ticks(values: Sequence[float], *, whole: bool = False) -> list[float]:
    """Round numbers, four to eight of them, from at most the least value to at least the greatest."""
    low, high = min(values), max(values)
    largest = max(abs(low), abs(high))
    span = high - low if high - low > 1e-9 * largest else largest or 1.0
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= 6)
    step = max(step, 1.0) if whole else step
    first, last = math.floor(low / step), math.ceil(high / step)
    return [float(f"{number * step:.15g}") for number in range(first, max(last, first + 1) + 1)]
