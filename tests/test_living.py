"""Processes by host, number and start: who is gone, and who cannot be told of."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.living import is_dead, this_process


def test_who_asks_lives() -> None:
    assert not is_dead(this_process())


@pytest.mark.parametrize(
    "change", [{"started": 0.0}, {"started": 10**400}, {"pid": 1 << 30}, {"pid": "none"}, {"pid": None}]
)
def test_another_start_or_no_number_is_gone(change: dict[str, Any]) -> None:
    assert is_dead({**this_process(), **change})
    assert not is_dead({**this_process(), **change, "host": "elsewhere.invalid"})


def test_nothing_is_known_of_nobody() -> None:
    assert not is_dead({})


def test_a_container_that_has_the_name_of_its_host_counts_by_itself() -> None:
    """With `docker run --network host` both have one name, and what is 7 in one is another in the other."""
    gone = {**this_process(), "pid": 1 << 30}
    assert is_dead(gone)
    assert not is_dead({**gone, "numbers": "pid:[1]"})
    del gone["numbers"]
    assert is_dead(gone)
