"""Stretches without collections end as they began, whatever happens in them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from flatout.store import prepare as preparing
from flatout.store.uncollected import uncollected


@pytest.fixture(autouse=True)
def _collector_stays() -> Iterator[None]:
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_collector_is_as_before(is_on: bool, fails: bool) -> None:
    (gc.enable if is_on else gc.disable)()
    with suppress(ValueError), uncollected():
        assert not gc.isenabled()
        if fails:
            raise ValueError
    assert gc.isenabled() is is_on


@pytest.mark.parametrize(("num_workers", "is_collected"), [(0, True), (1, False)])
def test_rows_that_are_made_here_are_collected(
    source: Any, monkeypatch: pytest.MonkeyPatch, num_workers: int, is_collected: bool
) -> None:
    """A user's code that leaves circles behind would fill the memory with them."""
    seen: list[bool] = []
    real = preparing.Planner.start

    def start(self: Any, *arguments: Any) -> Any:
        seen.append(gc.isenabled())
        return real(self, *arguments)

    monkeypatch.setattr(preparing.Planner, "start", start)
    gc.enable()
    source.prepare(num_workers=num_workers)
    assert seen == [is_collected]
