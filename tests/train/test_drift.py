"""DriftDetector: against simulated waits; no drift, no word; a lasting rise is noticed within 50 steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.train.drift import MARGIN, DriftDetector, share_of

WITHIN = 50
LEVELS = st.floats(0.0, 0.6)


def first_drift(shares: list[float], step_s: float = 0.01) -> int | None:
    """Number of the step at which a drift is reported."""
    detector = DriftDetector()
    for number, share in enumerate(shares):
        if detector.add(share * step_s, step_s) is not None:
            return number
    return None


@given(level=LEVELS, noise=st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=40))
def test_waits_around_one_level_are_no_drift(level: float, noise: list[float]) -> None:
    """Any pattern within nearly half the margin on either side."""
    shares = [max(0.0, level + each * 0.45 * MARGIN) for each in noise * (600 // len(noise) + 1)]
    assert first_drift(shares) is None


@given(level=st.floats(0.0, 0.3), gap=st.integers(34, 90), height=st.floats(0.0, 1.0), start=st.integers(0, 90))
def test_single_slow_steps_are_no_drift(level: float, gap: int, height: float, start: int) -> None:
    shares = [max(level, height) if (n + start) % gap == 0 else level for n in range(800)]
    assert first_drift(shares) is None


@given(
    level=LEVELS,
    rise=st.floats(2.2 * MARGIN, 0.35),
    noise=st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=30),
    at=st.integers(180, 420),
)
def test_a_lasting_rise_is_noticed_within_fifty_steps(
    level: float, rise: float, noise: list[float], at: int
) -> None:
    shares = [
        level + (rise if n >= at else 0.0) + noise[n % len(noise)] * MARGIN / 10 for n in range(at + WITHIN)
    ]
    found = first_drift([min(1.0, max(0.0, share)) for share in shares])
    assert found is not None
    assert at <= found < at + WITHIN


@given(every=st.integers(1, 16), wait=st.floats(3.0, 30.0), at=st.integers(180, 300))
def test_waits_for_every_unit_are_a_drift(every: int, wait: float, at: int) -> None:
    """Small batches come in units of up to 16: the wait is in one step of each."""
    detector = DriftDetector()
    found = None
    for n in range(at + WITHIN):
        wait_s = wait if n >= at and n % every == 0 else 0.0
        if detector.add(wait_s, 1.0 + wait_s) is not None:
            found = n
            break
    assert found is not None
    assert found < at + WITHIN


@given(every=st.integers(17, 45), wait=st.floats(20.0, 80.0), at=st.integers(180, 300))
def test_waits_that_are_long_and_rare_are_a_drift(every: int, wait: float, at: int) -> None:
    detector, found = DriftDetector(), None
    for n in range(at + 2 * every + 1):
        wait_s = wait if n >= at and n % every == 0 else 0.0
        if detector.add(wait_s, 1.0 + wait_s) is not None:
            found = n
            break
    assert found is not None
    assert found >= at + every - 1  # not at the first of them


@given(waits=st.lists(st.floats(0.0, 1e3), min_size=1, max_size=16), at=st.integers(0, 400))
def test_a_burst_is_no_drift(waits: list[float], at: int) -> None:
    detector = DriftDetector()
    for n in range(700):
        wait_s = waits[n - at] if at <= n < at + len(waits) else 0.0
        assert detector.add(wait_s, 1.0 + wait_s) is None


@given(wait=st.floats(1.0, 1e4), at=st.integers(0, 500))
def test_one_wait_however_long_is_no_drift(wait: float, at: int) -> None:
    detector = DriftDetector()
    steps = [(wait, 1.0 + wait) if n == at else (0.0, 1.0) for n in range(700)]
    assert all(detector.add(*step) is None for step in steps)


@pytest.mark.parametrize("seed", range(5))
def test_false_alarms_are_rare(seed: int) -> None:
    """Gamma waits, steps of varying length, and one slow step in two hundred: 20,000 steps."""
    generator = np.random.default_rng(seed)
    detector, alarms = DriftDetector(), 0
    waits = generator.gamma(1.0, 0.5, 20_000) * (1 + 40 * (generator.random(20_000) < 0.005))
    for wait, step in zip(waits.tolist(), generator.gamma(20.0, 0.5, 20_000).tolist(), strict=True):
        if detector.add(wait, wait + step) is not None:
            alarms += 1
            detector.start_anew()
    assert alarms <= 4


def test_what_is_reported() -> None:
    detector = DriftDetector()
    found = [detector.add(0.1, 1.0) for _ in range(200)]
    found += [detector.add(0.4, 1.0) for _ in range(60)]
    drift = next(each for each in found if each is not None)
    assert drift.usual == pytest.approx(0.1)
    assert drift.now == pytest.approx(0.4)
    detector.start_anew()
    assert all(detector.add(0.4, 1.0) is None for _ in range(500))


@given(steps=st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), max_size=300))
@settings(max_examples=50)
def test_any_series_is_taken(steps: list[tuple[float, float]]) -> None:
    detector = DriftDetector()
    for wait_s, rest_s in steps:
        detector.add(wait_s, wait_s + rest_s)
    assert share_of([]) == 0.0
