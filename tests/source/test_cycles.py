"""Cycles of signals whose period is known, of real heart sounds, and of annotations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import SampleError
from flatout.source import cycles, sound
from flatout.source.files import SourceFile
from flatout.types import Limits

RANGE_S = (0.4, 1.5)


def heart_sound(
    period_s: float, rate: int, duration_s: float, noise: float = 0.0, jitter: float = 0.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """(1, T) of S1 and S2 beats, and where the cycles start in seconds."""
    rng = np.random.default_rng(seed)
    gaps = period_s * (1 + jitter * rng.normal(size=int(duration_s / period_s) + 4))
    starts = np.cumsum(gaps) - 2 * period_s - rng.uniform(0, period_s)
    time = np.arange(round(duration_s * rate)) / rate
    signal = noise * rng.normal(size=len(time))
    for start in starts:
        for delay_s, frequency, gain in ((0.04, 60, 1.0), (0.04 + 0.3 * np.sqrt(period_s), 90, 0.6)):
            away = time - start - delay_s
            signal += gain * np.exp(-0.5 * (away / 0.028) ** 2) * np.sin(2 * np.pi * frequency * away)
    return signal[None].astype(np.float32), starts[(starts >= 0) & (starts <= duration_s)]


@pytest.mark.parametrize("period_s", [0.5, 0.6, 0.75, 0.9, 1.05, 1.2])
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_known_periods_are_found(period_s, noise):
    for seed, (rate, duration_s) in enumerate(itertools.product([1000, 2000, 4000, 8000], [3.0, 10.0])):
        signal, starts = heart_sound(period_s, rate, duration_s, noise, seed=seed)
        found = cycles.find_period(signal, rate, RANGE_S)
        assert found == pytest.approx(period_s, rel=0.03), (rate, duration_s)
        spans = cycles.find_spans(signal, rate, RANGE_S)
        assert abs(len(spans) - (len(starts) - 1)) <= 1, (rate, duration_s)
        lengths = [end - start for start, end in spans]
        assert np.mean(lengths) == pytest.approx(period_s, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_beats_are_followed_when_the_rhythm_varies(seed):
    signal, starts = heart_sound(0.8, 2000, 10.0, noise=0.05, jitter=0.05, seed=seed)
    spans = cycles.find_spans(signal, 2000, RANGE_S)
    found = np.array([start for start, _ in spans][1:-1])
    away = np.array([(starts - start)[np.argmin(np.abs(starts - start))] for start in found])
    assert len(spans) >= len(starts) - 2
    assert np.ptp(away) < 0.08, "every cycle starts at the same point of its beat"
    assert np.all(np.abs(away) < 0.12), "which is close to S1"


def test_gain_offset_and_channels_change_nothing():
    signal, _ = heart_sound(0.9, 2000, 6.0, noise=0.05)
    expected = cycles.find_spans(signal, 2000, RANGE_S)
    for same in (5 * signal + 3, np.concatenate([signal, signal])):
        np.testing.assert_allclose(cycles.find_spans(same, 2000, RANGE_S), expected)


def test_real_heart_sounds_have_three_cycles(data_dir):
    ratios = []
    paths = sorted((data_dir / "heart_yaseen").glob("*/*.wav"))[::3]
    for path in paths:
        decoded = sound.decode(SourceFile.whole(path), Limits())
        assert decoded.rate is not None
        try:
            period_s = cycles.find_period(decoded.array, decoded.rate, RANGE_S)
        except SampleError:
            continue
        ratios.append(decoded.array.shape[1] / decoded.rate / period_s)
    num_plausible = np.sum(np.abs(np.array(ratios) - 3) < 0.35)
    assert num_plausible >= 0.95 * len(paths)


def test_what_does_not_repeat_has_no_cycles():
    rng = np.random.default_rng(1)
    time = np.arange(20_000) / 2000
    for signal in (rng.normal(size=20_000), np.zeros(20_000), np.sin(2 * np.pi * 50 * time), np.full(9, 1.0)):
        with pytest.raises(SampleError):
            cycles.find_spans(signal[None], 2000, RANGE_S)


def test_click_in_silence_and_nan_are_no_cycles():
    for value in (1.0, np.nan):
        signal = np.zeros((1, 20_000))
        signal[0, 1000] = value
        with pytest.raises(SampleError):
            cycles.find_spans(signal, 2000, RANGE_S)


@given(st.integers(0, 2**32 - 1), st.integers(2, 400), st.sampled_from([1.0, 30.0, 500.0]))
def test_any_signal_gives_ordered_cycles_or_a_sample_error(seed, num_samples, rate):
    signal = np.random.default_rng(seed).normal(size=(1, num_samples))
    try:
        spans = cycles.find_spans(signal, rate, (0.01, 100.0))
        ranges = cycles.to_samples(spans, rate, num_samples)
    except SampleError:
        return
    assert all(0 <= start < stop <= num_samples for start, stop in ranges)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))


def test_autocorrelation_of_a_sine_is_one_after_a_period():
    envelope = 2 + np.sin(2 * np.pi * np.arange(400) / 40)
    found = cycles.autocorrelation(envelope)
    assert found[0] == pytest.approx(1)
    assert found[40] == pytest.approx(1, abs=1e-6)
    assert found[20] == pytest.approx(-1, abs=1e-6)


@pytest.mark.parametrize(
    "value", ["0.1 0.9 1.7", "0.1,0.9,1.7", "0.1; 0.9; 1.7", "[0.1, 0.9, 1.7]", [0.1, 0.9, 1.7]]
)
def test_start_times_in_a_cell(value):
    starts = cycles.parse_starts(value)
    assert starts == [0.1, 0.9, 1.7]
    assert cycles.spans_from_starts(starts) == [(0.1, 0.9), (0.9, 1.7)]


def test_other_cells_are_paths_or_refused():
    assert cycles.parse_starts("patient7/rec1.tsv") is None
    for value in (["a"], {"a": 1}, [[1.0], [2.0, 3.0]]):
        with pytest.raises(SampleError, match="must be numbers"):
            cycles.parse_starts(value)


@pytest.mark.parametrize(
    "starts", [[], [0.5], [0.5, 0.5], [1.0, 0.5], [-0.1, 0.5], [0.1, np.nan], [0.1, np.inf]]
)
def test_start_times_that_make_no_cycle(starts):
    with pytest.raises(SampleError, match="cycle starts"):
        cycles.spans_from_starts(starts)


def test_states_give_cycles_from_s1_to_s1_without_gaps():
    rows = [(0.0, 0.3, 0)]
    for start in (0.3, 1.1, 2.5, 3.3):
        rows += [(start, start + 0.1, 1), (start + 0.1, start + 0.3, 2), (start + 0.3, start + 0.4, 3)]
        rows += [(start + 0.4, start + 0.8, 4)]
    rows.insert(9, (1.9, 2.5, 0))  # nobody knows what happens between 1.9 and 2.5 s
    assert cycles.spans_from_states(np.array(rows)) == [(0.3, 1.1), (2.5, 3.3)]


def test_states_that_hold_no_cycle():
    for table in (
        np.zeros((3, 2)),
        np.array([[0.0, 1.0, 1.0]]),
        np.array([[0.0, 1.0, 0.0], [1.0, 2.0, 2.0]]),
    ):
        with pytest.raises(SampleError):
            cycles.spans_from_states(table)


def test_cycles_of_a_part_of_a_recording():
    spans = [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]
    assert cycles.to_samples(spans, 100.0, 300) == [(0, 100), (100, 200), (200, 300)]
    assert cycles.to_samples(spans, 100.0, 299) == [(0, 100), (100, 200), (200, 299)]
    assert cycles.to_samples(spans, 100.0, 170, offset_s=0.5) == [(50, 150)]
    with pytest.raises(SampleError, match=r"ends at 3\.000 s, the signal at 2\.500 s"):
        cycles.to_samples(spans, 100.0, 250)
    with pytest.raises(SampleError, match="none of 3 cycles"):
        cycles.to_samples(spans, 100.0, 50, offset_s=0.5)
