"""Charts of a run: the same for one run and for two side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from flatout.report.lines import Line, line_chart
from flatout.report.page import Chart
from flatout.report.quantity import BYTES, CORES, PLAIN, RATE, SHARE, Quantity
from flatout.report.run import RunRecord
from flatout.report.stack import Bar, bar_chart
from flatout.train.record import EpochRow, Look

MOST_METRICS = 8
STAGES = ("train_", "val_", "test_")
COLOURS = ("k0", "k1", "k2", "k3", "k4", "k5")

Named = Sequence[tuple[str, RunRecord]]
"""Runs and what to call them; a single one is called nothing."""
Row = TypeVar("Row", Look, Look | EpochRow)


def step_chart(runs: Named) -> Chart | None:
    """A step's time, waiting and computing, of each run."""
    bars = []
    for name, run in runs:
        speed = run.speed
        num_timed = speed.num_steps - 1  # the first warms up: it is no part of `train_s`
        if num_timed > 0 and speed.data_wait_share is not None:
            step_s, share = speed.train_s / num_timed, min(max(speed.data_wait_share, 0.0), 1.0)
            parts = (("wait", step_s * share), ("work", step_s * (1 - share)))
            bars.append(Bar(_joined(name, "one step"), parts))
    # Not the median: where a few steps wait for seconds, it is short and has no wait in it.
    note = "The mean step of the whole run but its first, waiting and computing."
    return bar_chart("A step", bars, note)


def wait_chart(runs: Named) -> Chart | None:
    """Share of time that training waited, over steps."""
    lines = [
        Line(_joined(name, "waiting for data"), _points(_moments(run), lambda row: row.data_wait_share), colour)
        for (name, run), colour in zip(runs, COLOURS, strict=False)
    ]
    return line_chart("Waiting for data", lines, SHARE, "step", least_top=0.1)


def speed_chart(runs: Named) -> Chart | None:
    """Samples a second, and what they would be without waiting."""
    lines = []
    for at, (name, run) in enumerate(runs):
        moments, colour = _moments(run), COLOURS[2 * at]
        lines.append(Line(_joined(name, "measured"), _points(moments, lambda row: row.samples_per_s), colour))
        ceiling = _points(moments, lambda row: _ceiling(row.samples_per_s, row.data_wait_share))
        lines.append(Line(_joined(name, "without waiting"), ceiling, COLOURS[2 * at + 1], is_dashed=True))
    return line_chart("Throughput against its ceiling", lines, RATE, "step")


def utilisation_chart(runs: Named) -> Chart | None:
    """The device's counter where there is one; otherwise the share of time not spent waiting, named so."""
    lines = []
    for (name, run), colour in zip(runs, COLOURS, strict=False):
        points = _points(run.looks, lambda look: look.device_utilisation)
        what = "device"
        if not points:
            what, points = "not waiting for data", _points(_moments(run), _not_waiting)
        lines.append(Line(_joined(name, what), points, colour))
    return line_chart("Utilisation", lines, SHARE, "step", least_top=1.0)


def cores_chart(runs: Named) -> Chart | None:
    """Busy cores."""
    lines = [
        Line(_joined(name, "busy cores"), _points(run.looks, lambda look: look.cpu_share), colour)
        for (name, run), colour in zip(runs, COLOURS, strict=False)
    ]
    return line_chart("Processor", lines, CORES, "step", least_top=1.0)


def memory_chart(runs: Named) -> Chart | None:
    """Main memory and the device's."""
    lines = []
    for at, (name, run) in enumerate(runs):
        main = _points(run.looks, lambda look: look.rss_bytes)
        device = _points(run.looks, lambda look: look.device_bytes)
        lines.append(Line(_joined(name, "main memory"), main, COLOURS[2 * at]))
        lines.append(Line(_joined(name, "device, most so far"), device, COLOURS[2 * at + 1]))
    return line_chart("Memory", lines, BYTES, "step")


def metric_charts(runs: Named) -> list[Chart]:
    """One chart for `train_loss` and `val_loss`, one for `val_dice`, and so on; the loss first."""
    lines: dict[str, list[Line]] = {}
    for name, run in runs:
        for metric, points in _metrics(run.epochs).items():
            stem = next((metric.removeprefix(s) for s in STAGES if metric.startswith(s)), metric)
            group = lines.setdefault(stem, [])
            group.append(Line(_joined(name, metric), points, COLOURS[len(group) % len(COLOURS)]))
    stems = sorted(lines, key=lambda stem: stem != "loss")[:MOST_METRICS]
    charts = [line_chart(stem, lines[stem], _unit(stem), "epoch", from_zero=False) for stem in stems]
    return [chart for chart in charts if chart is not None]


def _metrics(epochs: Iterable[EpochRow]) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for row in epochs:
        for name, value in {"train_loss": row.train_loss, **row.metrics}.items():
            if value is not None:
                found.setdefault(name, []).append((row.epoch + 1, value))
    return found


def _unit(metric: str) -> Quantity:
    return SHARE if metric.endswith("_share") else PLAIN


def _moments(run: RunRecord) -> Sequence[Look | EpochRow]:
    """Looks; a run too short for any has its epochs."""
    return run.looks or run.epochs


def _points(rows: Iterable[Row], value_of: Callable[[Row], float | None]) -> list[tuple[float, float]]:
    given = ((row.step, value_of(row)) for row in rows)
    return [(step, value) for step, value in given if value is not None]


def _ceiling(samples_per_s: float | None, wait_share: float | None) -> float | None:
    if samples_per_s is None or wait_share is None or not 0 <= wait_share < 1:
        return None
    return samples_per_s / (1 - wait_share)


def _not_waiting(row: Look | EpochRow) -> float | None:
    return None if row.data_wait_share is None else 1 - row.data_wait_share


def _joined(run: str, what: str) -> str:
    return f"{run}: {what}" if run else what
