"""Calls that take turns: interleaved rounds in one process, the median of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

Call = Callable[[], Any]


def milliseconds_in_turns(calls: Mapping[str, Call], rounds: int, seconds: float) -> dict[str, float]:
    """Milliseconds of one call of each; every round starts with another one and gives each `seconds`."""
    for call in calls.values():
        call()  # plans of FFTs, compiled code, memory: none of it belongs to the first round
    names = list(calls)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            found[name].append(_milliseconds(calls[name], seconds))
    return {name: median(each) for name, each in found.items()}


def samples_per_s(num_samples: int, milliseconds: float) -> dict[str, float]:
    """The rate of a call that handles so many samples, as results hold it."""
    return {"samples_per_s": num_samples / milliseconds * 1e3}


def _milliseconds(call: Call, seconds: float) -> float:
    num_calls = 0
    started = time.perf_counter()
    while True:
        call()
        num_calls += 1
        elapsed = time.perf_counter() - started
        if elapsed >= seconds:
            return elapsed / num_calls * 1e3
