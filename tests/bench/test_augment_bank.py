"""The view bank's benchmark at a tiny scale: steps are measured with and without a refresh behind them."""

from __future__ import annotations

import pytest

from flatout.bench import augment_bank
from flatout.bench.augment_bank import BATCH_SIZE, Signals, measure_refresh, slow_filter


def test_the_ratio_is_that_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augment_bank, "NUM_SAMPLES", BATCH_SIZE)
    told = iter([5.0, 4.0, 8.0, 2.0, 3.0, 1.0, 9.0])  # the first is thrown away
    monkeypatch.setattr(augment_bank, "_mean_ms", lambda steps, seconds: next(told))
    refreshed = []

    class Noted:
        def __init__(self, order: object, folder: object) -> None:
            refreshed.append("begun")

        def stop(self) -> None:
            refreshed.append("ended")

    monkeypatch.setattr(augment_bank, "Refresh", Noted)
    monkeypatch.setattr(augment_bank, "START_S", 0.0)
    found = measure_refresh(3, 0.01)
    assert refreshed == ["begun", "ended"] * 3
    assert (found["step_ms"], found["step_ms_during_refresh"]) == (2.0, 8.0)
    assert found["ratio"] == 2.0  # of 2, 1.5 and 9


def test_a_step_waits_for_the_accelerator() -> None:
    steps = augment_bank._steps([{}, {}], 0.002)  # type: ignore[arg-type]
    assert augment_bank._mean_ms(steps, 0.01) >= 2.0


def test_the_transform_draws_from_its_generator() -> None:
    import numpy as np

    signal = Signals()[0]["signal"]
    one, again, other = (slow_filter(signal, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
