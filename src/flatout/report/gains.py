"""Gains: how many times as fast each remedy is, predicted and measured, with its 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from flatout.doctor.record import Remedy
from flatout.report.canvas import BOTTOM, RIGHT, WIDTH, Axis, grid_x, hover, make_axis, picture
from flatout.report.page import Cell, Chart, Table, number
from flatout.report.quantity import ABSENT, PLAIN, number_text
from flatout.report.text import NAME_LENGTH, clipped

ROW, FIRST = 38, 34
MOST = 20


def gain_chart(remedies: Sequence[Remedy], ceiling: float | None) -> Chart | None:
    """Before is 1; None where no remedy was tried or predicted."""
    shown = [remedy for remedy in remedies if _values(remedy)][:MOST]
    if not shown:
        return None
    everything = [1.0, *(value for remedy in shown for value in _values(remedy))]
    everything += [ceiling] if ceiling is not None and math.isfinite(ceiling) else []
    axis = make_axis(everything, PLAIN, 8, WIDTH - RIGHT - 8)
    bottom = FIRST + ROW * len(shown) - 10
    parts = _rules(axis, bottom, ceiling)
    for at, remedy in enumerate(shown):
        parts += _row(remedy, axis, FIRST + ROW * at)
    parts += grid_x(axis, bottom, "times as fast as before")
    title = "Before and after"
    table = Table.of(["", "predicted", "measured", "95 % interval", ""], [_cells(remedy) for remedy in shown])
    told = "; ".join(f"{r[0].text}: predicted {r[1].text}, measured {r[2].text}" for r in table.rows)
    key = "Rings are predicted, dots measured, with their interval."
    key += " Dashed: what no data path can exceed." if ceiling is not None else ""
    return Chart(title, picture(title, told, bottom + BOTTOM, parts), table, key=key)


def times_text(gain: float | None) -> str:
    """1.834 -> '1.83x'; nothing where there is nothing to hold against."""
    return ABSENT if not gain or not math.isfinite(gain) else f"{number_text(gain)}x"


def outcome_text(remedy: Remedy) -> str:
    """What became of a trial."""
    trial = remedy.trial
    if trial is None:
        return "not tried"
    told = ["kept" if trial.is_kept else "not kept"]
    told += ["other losses"] if trial.losses_agree is False else []
    told += [clipped(trial.note)] if trial.note else []
    return ", ".join(told)


def _values(remedy: Remedy) -> list[float]:
    trial = remedy.trial
    given = [remedy.predicted_gain, *((trial.gain, trial.low, trial.high) if trial else ())]
    return [value for value in given if value is not None and math.isfinite(value)]


def _rules(axis: Axis, bottom: float, ceiling: float | None) -> list[str]:
    at = axis.place(1.0)
    parts = [f'<line class="a" x1="{at:.1f}" x2="{at:.1f}" y1="12" y2="{bottom:.1f}"/>']
    if ceiling is not None and math.isfinite(ceiling):
        x = axis.place(ceiling)
        dash = 'stroke-dasharray="5 4"'
        parts.append(f'<line class="l k1" x1="{x:.1f}" x2="{x:.1f}" y1="12" y2="{bottom:.1f}" {dash}/>')
    return parts


def _row(remedy: Remedy, axis: Axis, y: float) -> list[str]:
    trial = remedy.trial
    parts = [f'<text class="t" x="8" y="{y - 9:.1f}">{escape(clipped(remedy.name, 60))}</text>']
    if trial is not None and math.isfinite(trial.gain):
        colour = "k2" if trial.is_kept else "k4"
        if math.isfinite(trial.low) and math.isfinite(trial.high):
            left, right = axis.place(trial.low), axis.place(trial.high)
            parts.append(f'<line class="w {colour}" x1="{left:.1f}" x2="{right:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="d {colour}" cx="{axis.place(trial.gain):.1f}" cy="{y}" r="4.5"/>')
    if remedy.predicted_gain is not None and math.isfinite(remedy.predicted_gain):
        parts.append(f'<circle class="r" cx="{axis.place(remedy.predicted_gain):.1f}" cy="{y}" r="6"/>')
    cells = _cells(remedy)
    told = [f"{cells[0].text}: predicted {cells[1].text}, measured {cells[2].text} ({cells[3].text})"]
    return [*parts, hover(0, y - 20, WIDTH, ROW - 6, told)]


def _cells(remedy: Remedy) -> list[Cell]:
    trial = remedy.trial
    interval = f"{times_text(trial.low)} to {times_text(trial.high)}" if trial else ABSENT
    return [
        Cell(clipped(remedy.name, NAME_LENGTH)),
        number(times_text(remedy.predicted_gain)),
        number(times_text(trial.gain if trial else None)),
        number(interval),
        Cell(outcome_text(remedy), tone="good" if trial is not None and trial.is_kept else "plain"),
    ]
