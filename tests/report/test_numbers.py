"""Numbers, texts, points: what is shown is what was measured."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.report.machine import fact_text
from flatout.report.quantity import BYTES, PLAIN, SECONDS, SHARE, number_text
from flatout.report.text import cleaned, clipped, clipped_end
from flatout.report.thin import finite, spark, stretches, thin

FLOATS = st.floats(-1e9, 1e9)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SECONDS.text(0.0421), "42.1 ms"),
        (SECONDS.text(0.0), "0 µs"),
        (SECONDS.text(75.0), "1.25 min"),
        (SECONDS.text(2e-7), "0.2 µs"),
        (SHARE.text(0.4), "40 %"),
        (SHARE.text(0.0), "0 %"),
        (SHARE.text(2e-6), "under 0.1 %"),
        (BYTES.text(1536), "1.5 KiB"),
        (BYTES.text(3 << 30), "3 GiB"),
        (PLAIN.text(999.7), "1,000"),
        (PLAIN.text(-12345.6), "-12,346"),
        (PLAIN.text(None), "-"),
        (PLAIN.text(math.nan), "-"),
        (PLAIN.text(math.inf), "-"),
        (number_text(1e300), "1e+300"),
        (SECONDS.text(10**400), "-"),
        (number_text(-(10**400)), "-"),
        (fact_text("start_s", 10**400), "-"),
        (fact_text("count", 10**400)[:5], "10,00"),
    ],
)
def test_units_that_fit(text: str, told: str) -> None:
    assert text == told


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_any_number_has_a_short_text(value: float) -> None:
    for quantity in (SECONDS, SHARE, BYTES, PLAIN):
        assert 1 <= len(quantity.text(value)) <= 24


@given(st.lists(st.tuples(FLOATS, FLOATS), max_size=700), st.integers(2, 60))
def test_thinning_keeps_the_peaks_and_the_order(points: list[tuple[float, float]], most: int) -> None:
    ordered = finite(points)
    kept = thin(ordered, most)
    assert len(kept) <= max(most, 2)
    assert set(kept) <= set(ordered)
    assert kept == sorted(kept)
    if ordered:
        assert max(y for _, y in kept) == max(y for _, y in ordered)
        assert min(y for _, y in kept) == min(y for _, y in ordered)
    if len(ordered) <= most:
        assert kept == ordered


@given(st.integers(0, 300), st.integers(1, 40))
def test_stretches_are_all_of_it_in_order(num: int, most: int) -> None:
    found = list(stretches(range(num), most))
    assert [at for stretch in found for at in stretch] == list(range(num))
    assert all(found)
    assert len(found) <= most
    sizes = [len(stretch) for stretch in found]
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_points_that_cannot_be_drawn_are_left_out() -> None:
    assert finite([(2, 1.0), (1, math.nan), (math.inf, 0.0), (0, -1.0)]) == [(0, -1.0), (2, 1.0)]


def test_lines_as_text() -> None:
    assert spark([0.0, 1.0]) == "▁█"
    assert spark([5.0] * 3) == "▁▁▁"
    assert spark([]) == ""
    rising = spark([float(at) for at in range(1000)])
    assert len(rising) == 24
    assert all(a <= b for a, b in pairwise(rising))


def test_characters_that_act_are_replaced() -> None:
    told = cleaned("a\x1b[31mb\r\nc\td\u202ee\ud800f\x00")
    assert told == "a\ufffd[31mb\nc\td\ufffde\ufffdf\ufffd"
    told.encode("utf-8")


def test_long_texts_are_cut() -> None:
    assert clipped("a" * 500, 10) == "a" * 9 + "…"
    assert clipped([1, 2]) == "[1, 2]"
    assert clipped_end("head" + "x" * 50 + "tail", 10) == "…xxxxxtail"
    assert clipped_end("short") == "short"
