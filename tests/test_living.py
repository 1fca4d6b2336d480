"""Processes by host, number and start: who is gone, and who cannot be told of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flatout.living import is_dead, is_known_here, this_process


def test_who_asks_lives() -> None:
    assert not is_dead(this_process())


@pytest.mark.parametrize(
    "change",
    [
        {"started": 0.0, "ticks": None},
        {"pid": 1 << 30},
        {"pid": "none"},
        {"pid": None},
        {"pid": float("inf")},
        {"started": 10**400, "ticks": None},
    ],
)
def test_another_start_or_no_number_is_gone(change: dict[str, Any]) -> None:
    assert is_dead({**this_process(), **change})
    assert not is_dead({**this_process(), **change, "host": "elsewhere.invalid"})


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only the clock tells starts here")
def test_a_clock_that_was_set_ends_nobody() -> None:
    """psutil tells starts by the clock: one that was set by a minute moves those of all that live."""
    process = this_process()
    assert not is_dead({**process, "started": process["started"] - 60.0})
    assert is_dead({**process, "ticks": 1})
    assert is_dead({**process, "started": process["started"] - 60.0, "numbered_by": "before a restart"})


def test_nothing_is_known_of_nobody() -> None:
    assert not is_dead({})
    assert not is_known_here({})


def test_a_number_means_something_where_it_was_given() -> None:
    """Containers with the host's network have its name, and so have copied machines."""
    assert is_known_here(this_process())
    assert not is_known_here({**this_process(), "numbered_by": "another"})
    assert not is_known_here({**this_process(), "host": "elsewhere.invalid"})


@pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="this system has no containers of its own")
def test_a_container_gives_numbers_of_its_own() -> None:
    boot, _, space = this_process()["numbered_by"].partition(" ")
    assert len(boot) == 36
    assert space == str(Path("/proc/self/ns/pid").readlink())
