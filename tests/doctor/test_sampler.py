"""The sampler: what it may take of a core, whatever a look costs."""

from __future__ import annotations

import threading
from time import perf_counter

import pytest

from flatout.doctor.workers import sampler
from flatout.doctor.workers.sampler import LONGEST_PERIOD_S, MAX_SHARE, PERIOD_S, Sampler, pause_of


def test_cheap_looks_come_at_their_own_pace() -> None:
    assert pause_of(0.5 * MAX_SHARE * PERIOD_S) == PERIOD_S


@pytest.mark.parametrize("times", [1.5, 3, 10])
def test_dearer_looks_come_later_so_that_the_share_is_kept(times: float) -> None:
    look_s = times * MAX_SHARE * PERIOD_S
    assert look_s / pause_of(look_s) == pytest.approx(MAX_SHARE)


def test_looks_never_stop() -> None:
    assert pause_of(10.0) == LONGEST_PERIOD_S


def test_its_thread_keeps_to_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the rule a look would come every ten microseconds and take most of a core.
    monkeypatch.setattr(sampler, "PERIOD_S", 1e-5)
    found, start = Sampler(), perf_counter()
    found.begin_making(threading.get_ident())
    while perf_counter() - start < 1.0:
        sum(range(1000))
    share = found.cpu_s / (perf_counter() - start)
    found.end_making()
    assert sum(found.counts.values()) > 10
    assert share < 3 * MAX_SHARE
