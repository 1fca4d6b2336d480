"""Plots: pictures that any reader takes, with every point inside."""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from flatout.train.plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, ticks, write_bars, write_plot

NUMBERS = st.floats(-1e9, 1e9, allow_nan=False).map(lambda number: round(number, 3))


@given(points=st.lists(st.tuples(st.integers(0, 1000), NUMBERS), min_size=2, max_size=9))
def test_every_point_is_inside(points: list[tuple[int, float]], tmp_path_factory: object) -> None:
    path = tmp_path_factory.getbasetemp() / "plot.svg"  # type: ignore[attr-defined]
    assert write_plot(path, "a < b & c", {"one": points, "none": []}, "step")
    tree = ElementTree.parse(path)
    (line,) = tree.iter("{http://www.w3.org/2000/svg}polyline")
    places = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert len(places) == len(points)
    for x, y in places:
        assert LEFT - 0.1 <= x <= WIDTH - RIGHT + 0.1
        assert TOP - 0.1 <= y <= HEIGHT - BOTTOM + 0.1


@given(values=st.lists(NUMBERS, min_size=1, max_size=5))
def test_ticks_are_round_and_cover(values: list[float]) -> None:
    marks = ticks(values)
    assert 2 <= len(marks) <= 9
    slack = 1e-9 * max(1.0, *map(abs, values))
    assert marks[0] <= min(values) + slack
    assert marks[-1] >= max(values) - slack


def test_one_point_and_none(tmp_path: Path) -> None:
    assert write_plot(tmp_path / "one.svg", "t", {"a": [(1, 2.0)]}, "x")
    assert re.search("<circle", (tmp_path / "one.svg").read_text())
    assert not write_plot(tmp_path / "none.svg", "t", {"a": [(1, math.nan)]}, "x")
    assert not (tmp_path / "none.svg").exists()


def test_numbers_far_from_one_are_drawn(tmp_path: Path) -> None:
    for values in ([1e-14, 2e-14], [1e17, 1e17 + 16], [3e-9, 3e-9], [-1e12, 1e12]):
        assert ticks(values)[0] < ticks(values)[-1]
        assert write_plot(tmp_path / "far.svg", "t", {"a": [(1, values[0]), (2, values[1])]}, "x")


@given(heights=st.lists(NUMBERS, min_size=1, max_size=40))
def test_every_bar_is_inside_and_stands_on_zero(heights: list[float], tmp_path_factory: object) -> None:
    path = tmp_path_factory.getbasetemp() / "bars.svg"  # type: ignore[attr-defined]
    assert write_bars(path, "a < b & c", heights, "unit")
    _, *bars = ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}rect")
    assert len(bars) == len(heights)
    ends = set()
    for bar, height in zip(bars, heights, strict=True):
        x, y, width, tall = (float(bar.attrib[name]) for name in ("x", "y", "width", "height"))
        assert LEFT - 0.1 <= x < x + width <= WIDTH - RIGHT + 0.1
        assert TOP - 0.2 <= y < y + tall <= HEIGHT - BOTTOM + 0.7
        if tall > 0.5:
            ends.add(round(y + tall if height > 0 else y))
    assert len(ends) <= 2, "one line that all stand on, to a rounding"


def test_bars_without_numbers_are_not_drawn(tmp_path: Path) -> None:
    assert not write_bars(tmp_path / "none.svg", "t", [math.nan, math.inf], "x")
    assert not (tmp_path / "none.svg").exists()
