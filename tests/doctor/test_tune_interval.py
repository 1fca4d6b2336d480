"""How sure a ratio is, and who wins a duel: as often right as they say, whatever disturbs a stretch."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.doctor.tune.choose import choose, is_better, seems_better
from flatout.doctor.tune.duel import LOOKS, duel, is_proven
from flatout.doctor.tune.interval import SURE, VERY_SURE, _rank, ratio_of, spread_of
from flatout.doctor.tune.race import Entry, Failed, Slice
from flatout.doctor.tune.setting import Setting

ONE, OTHER = Setting(0, 1, 8), Setting(2, 4, 8)


def stretch(rate: float) -> Slice:
    return Slice(rate, 10, 0.3, 0.5, 0.2, 1 << 20, 0.1)


def entry(setting: Setting, *rates: float) -> Entry:
    return Entry(setting, [stretch(rate) for rate in rates])


@given(
    values=st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=12), sureness=st.sampled_from([SURE, VERY_SURE])
)
def test_the_middle_lies_in_its_interval(values: list[float], sureness: float) -> None:
    found = spread_of(values, sureness)
    assert found.low <= found.middle * (1 + 1e-9)
    assert found.middle <= found.high * (1 + 1e-9)
    assert min(values) * (1 - 1e-9) <= found.middle <= max(values) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("num", "sure", "very_sure"),
    [(5, 0, 0), (6, 1, 0), (7, 3, 0), (8, 4, 1), (10, 9, 4), (12, 14, 8), (15, 26, 16)],
)
def test_ranks_are_those_of_the_tables(num: int, sure: int, very_sure: int) -> None:
    """Critical values of the signed-rank test, two-sided, plus one."""
    assert (_rank(num, SURE), _rank(num, VERY_SURE)) == (sure, very_sure)


@pytest.mark.parametrize("num", [3, 5, 6, 8, 12])
@pytest.mark.parametrize(("sureness", "least"), [(SURE, 0.93), (VERY_SURE, 0.98)])
def test_intervals_hold_the_truth_as_often_as_they_say(num: int, sureness: float, least: float) -> None:
    generator = np.random.default_rng(num)
    hits = 0
    for _ in range(1000):
        found = ratio_of(np.exp(0.1 * generator.standard_normal(num)).tolist(), [1.0] * num, sureness)
        hits += found.low <= 1.0 <= found.high
    assert hits / 1000 >= least


def test_one_disturbed_stretch_in_seven_moves_little() -> None:
    calm = [1.00, 1.01, 0.99, 1.02, 0.98, 1.00, 1.01]
    found = spread_of([0.3, *calm[1:]])
    assert found.middle == pytest.approx(spread_of(calm).middle, rel=0.02)


def test_of_nothing_nothing_is_known() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        spread_of([])
    with pytest.raises(ValueError, match="nothing was measured"):
        ratio_of([1.0], [])


def run_duel(ratio: float, noise: float, seed: int) -> list[Entry]:
    generator = np.random.default_rng(seed)

    def measure(setting: Setting) -> Slice:
        rate = 100 * (ratio if setting == OTHER else 1.0)
        return stretch(rate * math.exp(noise * generator.standard_normal()))

    return duel(ONE, OTHER, measure)


def test_a_large_gain_is_known_at_the_first_look() -> None:
    both = run_duel(2.0, 0.05, 0)
    assert [len(each.rates) for each in both] == [min(LOOKS)] * 2
    assert is_proven(both[1], both[0])


def test_noise_is_rarely_mistaken_for_a_gain() -> None:
    wins = [is_proven(both[1], both[0]) for both in (run_duel(1.0, 0.1, seed) for seed in range(400))]
    assert sum(wins) / 400 <= 0.04  # one side of 5 %


def test_a_gain_is_found_in_noise() -> None:
    wins = [is_proven(both[1], both[0]) for both in (run_duel(1.5, 0.2, seed) for seed in range(100))]
    assert sum(wins) >= 90


@pytest.mark.parametrize(("ratio", "noise"), [(1.01, 0.005), (1.0, 0.05), (0.8, 0.2)])
def test_what_is_likely_no_gain_needs_no_further_round(ratio: float, noise: float) -> None:
    rounds = [len(run_duel(ratio, noise, seed)[0].rates) for seed in range(100)]
    assert sum(each < max(LOOKS) for each in rounds) >= 80
    assert sum(rounds) / 100 < 7


def test_a_small_gain_is_not_given_up_early() -> None:
    wins = [is_proven(both[1], both[0]) for both in (run_duel(1.15, 0.05, seed) for seed in range(100))]
    assert sum(wins) >= 95


def test_what_ends_a_duel_as_no_gain_is_taken_for_none() -> None:
    both = [entry(ONE, 100, 100, 100, 100), entry(OTHER, 102, 103.5, 101.5, 104)]
    assert is_better(both[1], both[0])  # 95 % sure, after one of several looks
    assert not is_proven(both[1], both[0])


def test_a_duel_ends_with_its_deadline_and_with_who_fails() -> None:
    times = iter(range(100))
    both = duel(ONE, OTHER, lambda setting: stretch(1.0 + next(times) % 7), deadline_s=0.0, clock=lambda: 1.0)
    assert len(both[0].rates) == min(LOOKS)
    both = duel(ONE, OTHER, lambda setting: Failed("gone") if setting == OTHER else stretch(1.0))
    assert (len(both[0].rates), both[1].failure) == (1, "gone")


def test_where_nothing_is_beyond_noise_the_likely_best_is_taken_unless_it_needs_proof() -> None:
    entries = [entry(ONE, 50, 90, 60), entry(OTHER, 100, 95, 130)]
    assert not is_better(entries[1], entries[0])
    assert seems_better(entries[1], entries[0])
    likely = choose(entries, ONE, 1.0, seems_better)
    proven = choose(entries, ONE, 1.0)
    assert likely is not None
    assert proven is not None
    assert (likely.entry.setting, proven.entry.setting) == (OTHER, ONE)


def test_of_two_that_are_alike_what_stands_mostly_stays() -> None:
    generator = np.random.default_rng(0)
    steps_aside = 0
    for _ in range(400):
        before, other = 100 * np.exp(0.04 * generator.standard_normal((2, 4)))
        choice = choose([entry(ONE, *before), entry(OTHER, *other)], ONE, 1.0, seems_better)
        assert choice is not None
        steps_aside += choice.entry.setting == OTHER
    assert steps_aside / 400 <= 0.12  # one side of 80 %; merely ahead by 2 % is one of four


def test_a_single_timing_is_never_believed() -> None:
    for is_faster in (is_better, seems_better, is_proven):
        choice = choose([entry(ONE, 1.0), entry(OTHER, 100.0)], ONE, 1.0, is_faster)
        assert choice is not None
        assert choice.entry.setting == ONE
