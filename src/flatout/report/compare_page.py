"""The page of a comparison: both records in the same charts, and the tables of what differs."""

from __future__ import annotations

from collections.abc import Iterable

import flatout
from flatout.report import run_charts
from flatout.report.comparison import Comparison, Measure, difference_texts
from flatout.report.gains import times_text
from flatout.report.machine import fact_name, fact_text
from flatout.report.page import Cell, Chart, Page, Table, Tone, code, facts, number, section
from flatout.report.run import RunRecord
from flatout.report.settings import Difference
from flatout.report.text import NAME_LENGTH, clipped


def compare_page(comparison: Comparison) -> Page:
    """A comparison in, its page out."""
    headings = ["", *(clipped(name, NAME_LENGTH) for name in comparison.names)]
    sections = [
        section("Speed", [_measures(comparison.speed, headings), *_speed_charts(comparison)]),
        section("Metrics", [_measures(comparison.metrics, headings), *_metric_charts(comparison)]),
        section("Settings that differ", [_settings(comparison.settings, headings)]),
        section("Machines", [_machines(comparison.machine, headings)]),
    ]
    return Page(
        title=f"{headings[1]} and {headings[2]}",
        state="compared",
        tone="plain",
        verdict=clipped(comparison.verdict, 2000),
        facts=facts((each.name, _times(each), _texts(each)) for each in comparison.speed[:6]),
        sections=tuple(part for part in sections if part is not None),
        made_by=f"flatout {flatout.__version__}",
    )


def _times(measure: Measure) -> str:
    return times_text(measure.ratio)


def _texts(measure: Measure) -> str:
    return f"{measure.quantity.text(measure.first)}, then {measure.quantity.text(measure.second)}"


def tone_of(measure: Measure) -> Tone:
    """Good, bad, or neither."""
    return "plain" if measure.is_better is None else "good" if measure.is_better else "bad"


def _measures(measures: Iterable[Measure], headings: list[str]) -> Table:
    rows = [
        [
            Cell(clipped(each.name, NAME_LENGTH)),
            number(each.quantity.text(each.first)),
            number(each.quantity.text(each.second)),
            number(_times(each), tone_of(each)),
        ]
        for each in measures
    ]
    return Table.of([*headings, "ratio"], rows)


def _settings(found: Iterable[Difference], headings: list[str]) -> Table:
    rows = [[code(clipped(each.name, NAME_LENGTH)), *map(code, difference_texts(each))] for each in found]
    return Table.of(headings, rows)


def _machines(found: Iterable[Difference], headings: list[str]) -> Table:
    rows = [
        [fact_name(each.name), fact_text(each.name, each.first), fact_text(each.name, each.second)]
        for each in found
    ]
    return Table.of(headings, rows)


def _named(comparison: Comparison) -> list[tuple[str, RunRecord]]:
    pairs = zip(comparison.names, comparison.records, strict=True)
    return [(clipped(name, 40), record) for name, record in pairs if isinstance(record, RunRecord)]


def _speed_charts(comparison: Comparison) -> list[Chart | None]:
    runs = _named(comparison)
    makers = (
        run_charts.step_chart,
        run_charts.speed_chart,
        run_charts.wait_chart,
        run_charts.utilisation_chart,
        run_charts.cores_chart,
        run_charts.memory_chart,
    )
    return [make(runs) for make in makers]


def _metric_charts(comparison: Comparison) -> list[Chart]:
    return run_charts.metric_charts(_named(comparison))
