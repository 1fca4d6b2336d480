"""Stacks: what a step consists of, as bars on one time axis and as bands over all steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from flatout.doctor.record import PHASES, STAGES
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
from flatout.report.quantity import PLAIN, SECONDS, SHARE
from flatout.report.thin import bounds, spark

BAR_HEIGHT, BAR_ROOM = 24, 48
BANDS_HEIGHT = 210
NUM_BANDS = 100
"""Stretches that steps are averaged over."""
LEGIBLE = 44
"""Units of width that a word in a bar needs."""

NAMES = {
    "wait": "waiting for data",
    "copy": "copy to the device",
    "sync": "waiting for the device",
    "evaluate": "evaluation",
    "log": "logging",
    "work": "computing",
    "fetch": "reading",
    "prepare": "decoding, transforming",
    "collate": "stacking",
    "hand_over": "between processes",
}
"""What a phase or stage is called where it is shown; the others say it themselves."""


@dataclass(frozen=True)
class Bar:
    """One thing that takes time, in its parts, in order."""

    name: str
    seconds: tuple[tuple[str, float], ...]

    @property
    def total_s(self) -> float:
        return sum(seconds for _, seconds in self.seconds)


def name_of(part: str) -> str:
    """A phase or stage in words."""
    return NAMES.get(part, part)


def colour_of(part: str) -> str:
    """Its class in the stylesheet."""
    return f"p-{part}" if part in (*PHASES, *STAGES, "work") else "p-other"


def bar_chart(title: str, bars: Sequence[Bar], note: str = "") -> Chart | None:
    """Bars on one axis of time; None where nothing takes any."""
    drawn = [Bar(bar.name, tuple((p, s) for p, s in bar.seconds if s > 0)) for bar in bars]
    drawn = [bar for bar in drawn if bar.seconds]
    if not drawn:
        return None
    axis = make_axis([0.0, *(bar.total_s for bar in drawn)], SECONDS, 4, WIDTH - RIGHT)
    bottom = TOP + BAR_ROOM * len(drawn) - 14
    parts: list[str] = []
    for at, bar in enumerate(drawn):
        parts += _bar(bar, axis, TOP + BAR_ROOM * at)
    parts += grid_x(axis, bottom, "")
    rows = [row for bar in drawn for row in _rows(bar, has_name=len(drawn) > 1)]
    table = Table.of(["", "time", "share"], rows)
    told = "; ".join(f"{bar.name}: {SECONDS.text(bar.total_s)}" for bar in drawn)
    return Chart(title, picture(title, told, bottom + BOTTOM, parts), table, note)


def _bar(bar: Bar, axis: Axis, top: float) -> list[str]:
    parts = [f'<text x="4" y="{top - 5:.1f}">{escape(bar.name)}: {SECONDS.text(bar.total_s)}</text>']
    at_s = 0.0
    for part, seconds in bar.seconds:
        left, right = axis.place(at_s), axis.place(at_s + seconds)
        at_s += seconds
        name, share = name_of(part), SHARE.text(seconds / bar.total_s)
        box = f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{BAR_HEIGHT}"'
        parts.append(f'<rect class="f {colour_of(part)}" {box}/>')
        if right - left >= LEGIBLE:
            middle = (left + right) / 2
            label = f"{round(100 * seconds / bar.total_s)} %"
            parts.append(f'<text class="o m" x="{middle:.1f}" y="{top + 16:.1f}">{label}</text>')
        told = [f"{name}: {SECONDS.text(seconds)}, {share} of {bar.name}"]
        parts.append(hover(left, top, right - left, BAR_HEIGHT, told))
    return parts


def _rows(bar: Bar, *, has_name: bool) -> list[list[Cell]]:
    rows = [[Cell(bar.name), number(SECONDS.text(bar.total_s)), number("")]] if has_name else []
    for part, seconds in bar.seconds:
        share = SHARE.text(seconds / bar.total_s)
        rows.append([Cell(name_of(part), colour=colour_of(part)), number(SECONDS.text(seconds)), number(share)])
    return rows


def band_chart(title: str, columns: Mapping[str, Sequence[float]], x_name: str) -> Chart | None:
    """Bands over steps: the seconds of each part, averaged where there are more steps than places."""
    shown = {part: column for part, column in columns.items() if any(seconds > 0 for seconds in column)}
    num_steps = max(map(len, shown.values()), default=0)
    if num_steps < 2:
        return None
    starts = bounds(num_steps, NUM_BANDS)
    means = {part: _means(column, starts) for part, column in shown.items()}
    tops = [sum(each) for each in zip(*means.values(), strict=True)]
    steps = [start + 1 for start in starts[:-1]]
    x = make_axis([1.0, num_steps], PLAIN, LEFT, WIDTH - RIGHT, whole=True)
    y = make_axis([0.0, max(tops)], SECONDS, BANDS_HEIGHT - BOTTOM, TOP)
    svg = [*grid_y(y), *_bands(means, steps, x, y), *grid_x(x, BANDS_HEIGHT - BOTTOM, x_name)]
    svg += _band_hovers(means, steps, x, x_name)
    rows = [_band_row(part, sum(column) / num_steps) for part, column in reversed(shown.items())]
    told = f"{num_steps:,} steps; " + "; ".join(f"{name.text}: {mean.text}" for name, mean in rows)
    size = num_steps // len(steps)
    return Chart(
        title,
        picture(title, told, BANDS_HEIGHT, svg),
        Table.of(["", "mean"], rows),
        f"Each place is the mean of about {size:,} steps." if size > 1 else "",
        {name_of(part): spark(column) for part, column in shown.items()},
    )


def _means(column: Sequence[float], starts: Sequence[int]) -> list[float]:
    return [sum(column[first:end]) / (end - first) for first, end in pairwise(starts)]


def _bands(means: Mapping[str, Sequence[float]], steps: Sequence[int], x: Axis, y: Axis) -> list[str]:
    below, parts = [0.0] * len(steps), []
    for part, column in means.items():
        above = [base + mean for base, mean in zip(below, column, strict=True)]
        upper = [(x.place(step), y.place(top)) for step, top in zip(steps, above, strict=True)]
        lower = [(x.place(step), y.place(base)) for step, base in zip(steps, below, strict=True)]
        parts.append(f'<polygon class="f {colour_of(part)}" points="{path_of([*upper, *lower[::-1]])}"/>')
        below = above
    return parts


def _band_hovers(means: Mapping[str, Sequence[float]], steps: Sequence[int], x: Axis, x_name: str) -> list[str]:
    edges, found = [*(x.place(step) for step in steps), x.end], []
    for at, step in enumerate(steps):
        here = {part: column[at] for part, column in means.items() if column[at] > 0}
        told = [f"{x_name} {step:,}: {SECONDS.text(sum(here.values()))}"]
        told += [f"{name_of(part)}: {SECONDS.text(seconds)}" for part, seconds in here.items()]
        found.append(hover(edges[at], TOP, edges[at + 1] - edges[at], BANDS_HEIGHT - TOP - BOTTOM, told))
    return found


def _band_row(part: str, mean_s: float) -> tuple[Cell, Cell]:
    return Cell(name_of(part), colour=colour_of(part)), number(SECONDS.text(mean_s))
