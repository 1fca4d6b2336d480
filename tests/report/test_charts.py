"""Charts: well-formed pictures with every point inside, whatever the numbers and names are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.report.records import doctor_record, loader, remedies, run_document

from flatout.doctor.record import Remedy, Trial
from flatout.report.canvas import WIDTH, make_axis
from flatout.report.columns import MOST, MOST_CHARTS, column_charts
from flatout.report.doctor_charts import (
    steps_chart,
    throughput_chart,
    timeline_chart,
)
from flatout.report.gains import gain_chart
from flatout.report.lines import HEIGHT, Line, line_chart
from flatout.report.page import Chart
from flatout.report.quantity import BYTES, PLAIN, SECONDS, SHARE
from flatout.report.run import run_record_of
from flatout.report.run_charts import step_chart
from flatout.report.stack import Bar, band_chart, bar_chart
from flatout.report.steps import StepTable

ANY = st.floats(allow_nan=True, allow_infinity=True)
NAMES = st.text(max_size=8) | st.just("<script>\"'&")


def tree(chart: Chart | None) -> ElementTree.Element:
    assert chart is not None
    return ElementTree.fromstring(chart.svg)


def places(picture: ElementTree.Element) -> list[tuple[float, float]]:
    found = []
    for element in picture.iter():
        found += [tuple(map(float, pair.split(","))) for pair in element.get("points", "").split()]
        if element.tag == "circle":
            found.append((float(element.attrib["cx"]), float(element.attrib["cy"])))
    return found


@settings(max_examples=60)
@given(st.lists(st.tuples(ANY, ANY), max_size=40), st.sampled_from([PLAIN, SHARE, BYTES, SECONDS]))
def test_any_points_are_drawn_inside(points: list[tuple[float, float]], quantity: Any) -> None:
    chart = line_chart("t", [Line("one", points, "k0")], quantity, "step")
    if not any(math.isfinite(x) and math.isfinite(y) for x, y in points):
        assert chart is None
        return
    for x, y in places(tree(chart)):
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


@given(NAMES)
def test_names_stay_text(name: str) -> None:
    name = "".join(letter for letter in name if letter.isprintable())
    chart = line_chart(name, [Line(name, [(1, 2.0), (2, 3.0)], "k0")], PLAIN, name)
    assert {element.tag for element in tree(chart).iter()} <= {
        "svg", "title", "desc", "text", "line", "polyline", "circle", "rect",
    }  # fmt: skip


@given(st.lists(ANY.filter(math.isfinite), min_size=1, max_size=5), st.booleans())
def test_an_axis_is_never_without_length(values: list[float], whole: bool) -> None:
    axis = make_axis(values, SECONDS, 10, 300, whole=whole)
    assert axis.ticks[0] < axis.ticks[-1]
    assert all(10 <= axis.place(value) <= 300 for value in values)


def test_the_numbers_beside_a_chart() -> None:
    points = [(float(at), float(at)) for at in range(1, 6)]
    chart = line_chart("t", [Line("a", points, "k0"), Line("none", [], "k1")], SECONDS, "step")
    assert chart is not None
    (row,) = chart.table.rows
    assert chart.table.headings == ("s", "least", "median", "most", "last")
    assert [cell.text for cell in row] == ["a", "1", "3", "5", "5"]
    assert "a: least 1 s, median 3 s" in chart.svg
    assert "step 3\na: 3 s" in [element.text for element in tree(chart).iter("title")]


def test_many_points_are_thinned_and_the_peak_stays() -> None:
    points = [(float(at), 100.0 if at == 77_777 else 1.0) for at in range(100_000)]
    chart = line_chart("t", [Line("a", points, "k0")], PLAIN, "step")
    assert chart is not None
    assert len(chart.svg) < 40_000
    drawn = places(tree(chart))
    assert min(y for _, y in drawn) < max(y for _, y in drawn) - 100


def test_one_point_is_a_dot() -> None:
    assert len(list(tree(line_chart("t", [Line("a", [(1, 2.0)], "k0")], PLAIN, "x")).iter("circle"))) == 1


def test_a_bar_is_as_wide_as_its_parts() -> None:
    picture = tree(bar_chart("t", [Bar("one step", (("wait", 0.03), ("work", 0.01), ("copy", 0.0)))]))
    wait, work = (float(r.attrib["width"]) for r in picture.iter("rect") if "f" in r.attrib["class"].split())
    assert wait == pytest.approx(3 * work, abs=0.5)


def test_nothing_takes_no_bar() -> None:
    assert bar_chart("t", [Bar("a", ()), Bar("b", (("wait", 0.0), ("copy", math.nan)))]) is None
    assert band_chart("t", {"wait": [0.0, 0.0], "copy": []}, "step") is None
    assert band_chart("t", {"wait": [1.0]}, "step") is None


def test_phases_add_up_to_the_step() -> None:
    steps = StepTable.of(doctor_record(num_steps=1000).steps)
    assert sum(steps.means().values()) == pytest.approx(0.1, rel=0.01)
    assert steps.samples_per_s() == pytest.approx(320, rel=0.01)
    assert steps.wait_share() == pytest.approx(0.6, rel=0.01)
    chart = steps_chart(steps)
    assert chart is not None
    assert "mean of about 10 steps" in chart.note
    assert {row[0].text for row in chart.table.rows} == {"waiting for data", "forward", "backward", "optimiser"}


def test_the_timeline_holds_step_ceiling_and_batch() -> None:
    chart = timeline_chart(doctor_record(), StepTable.of(doctor_record().steps))
    names = [row[0].text for row in chart.table.rows] if chart else []
    assert [n for n in names if n.startswith("one ")] == [
        "one step",
        "one step, data in memory",
        "one batch, in one of 2 workers",
    ]
    assert "decoding, transforming" in names


def test_one_worker_is_not_one_of_one() -> None:
    record = doctor_record(loaders=(replace(loader(), num_workers=1),))
    chart = timeline_chart(record, StepTable.of(record.steps))
    assert chart is not None
    assert "one batch, in its worker" in [row[0].text for row in chart.table.rows]


def test_the_step_of_a_run_is_the_mean_one() -> None:
    """Nine steps in ten take 10 ms and wait for nothing: the median has no wait. The first is not timed."""
    speed = {"num_steps": 11, "train_s": 1.0, "data_wait_share": 0.9, "step_ms": 10.0}
    run = run_record_of(run_document(speed={**run_document()["speed"], **speed}), "run.json")
    chart = step_chart([("", run)])
    assert chart is not None
    assert [[cell.text for cell in row][:2] for row in chart.table.rows] == [
        ["waiting for data", "90 ms"],
        ["computing", "10 ms"],
    ]


def test_a_loader_that_is_made_anew_is_one_and_another_dataset_is_named() -> None:
    made_anew = doctor_record(loaders=(loader(), loader(), replace(loader(), num_workers=0)))
    two_sets = doctor_record(loaders=(loader(), replace(loader(), dataset="package.Unlabelled")))
    names = []
    for record in (made_anew, two_sets):
        chart = timeline_chart(record, StepTable.of(record.steps))
        assert chart is not None
        found = [row[0].text for row in chart.table.rows]
        names.append([name for name in found if name.startswith("one batch")])
    size = loader().batch_size
    assert names == [
        ["one batch, in one of 2 workers", "one batch, in the training thread"],
        [
            f"one batch of {size} from {loader().dataset}, in one of 2 workers",
            f"one batch of {size} from package.Unlabelled, in one of 2 workers",
        ],
    ]


def test_throughput_stands_below_its_ceiling() -> None:
    chart = throughput_chart(doctor_record(), StepTable.of(doctor_record().steps))
    assert chart is not None
    assert [cell.text for cell in chart.table.rows[1]] == ["data in memory", *["800"] * 4]


def test_gains_with_and_without_trials() -> None:
    chart = gain_chart(remedies(), 2.5)
    assert chart is not None
    assert [[cell.text for cell in row] for row in chart.table.rows] == [
        ["cache", "2.4x", "2.3x", "2.1x to 2.5x", "kept"],
        ["workers", "1.6x", "0.98x", "0.9x to 1.05x", "not kept"],
    ]
    assert gain_chart(remedies()[2:], 2.5) is None
    tree(gain_chart([Remedy("<b>", "", None, "", "", trial=Trial(math.nan, 1, math.inf, False))], math.nan))


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(NUMBERS, min_size=2, max_size=40), NAMES)
def test_lists_that_say_what_they_are_of_are_columns(values: list[float], name: str) -> None:
    name = "".join(letter for letter in name if letter.isprintable())  # a page cleans the others
    (chart,), rest = column_charts({f"x{name}_per_unit{name}": values, "verdict": "healthy"})
    assert rest == {"verdict": "healthy"}
    picture = tree(chart)
    bars = [element for element in picture.iter("rect") if element.get("class") == "d k0"]
    assert len(bars) == len(values)
    for bar in bars:
        x, y, width, height = (float(bar.attrib[key]) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + width <= WIDTH
        assert 0 <= y <= y + height <= HEIGHT


def test_what_a_column_says() -> None:
    (chart,), _ = column_charts({"kl_per_unit": [0.5, 0.0, 2.5]})
    assert chart.title == "kl by unit"
    assert [cell.text for cell in chart.table.rows[0]] == ["kl by unit", "0", "0.5", "2.5", "3"]
    assert "unit 2: 2.5" in chart.svg


@pytest.mark.parametrize(
    "found",
    [
        *([1.0], [], "text", [1.0, None], [1.0, math.nan], [True, False], ["<b>", 1.0], {"a": 1.0}, 3.0, None),
        [1, 10**400],
    ],
)
def test_other_reports_are_no_columns(found: Any) -> None:
    assert column_charts({"kl_per_unit": found}) == ([], {"kl_per_unit": found})


def test_too_many_columns_are_counted() -> None:
    values = [*range(MOST), 1000, 2000, -9]
    (chart,), _ = column_charts({"kl_per_unit": values})
    assert chart.note == "Bars for the first 512 of 515; the numbers are of all."
    assert chart.svg.count('class="d k0"') == MOST
    assert [cell.text for cell in chart.table.rows[0]][1:] == ["-9", "256", "2,000", f"{sum(values):,}"]


def test_lists_beyond_the_charts_are_left_as_they_are() -> None:
    report = {f"x{at}_per_unit": [at, at + 1] for at in range(MOST_CHARTS + 2)}
    charts, rest = column_charts(report)
    assert [chart.title for chart in charts] == [f"x{at} by unit" for at in range(MOST_CHARTS)]
    assert rest == dict(list(report.items())[MOST_CHARTS:])
