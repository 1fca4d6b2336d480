"""The sampler: what it may take of a core, whatever a look costs."""

from __future__ import annotations

import sys
import threading
from time import perf_counter

import pytest

from flatout.doctor.record import FunctionCost
from flatout.doctor.workers import places, sampler
from flatout.doctor.workers.places import places_of
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


def test_a_librarys_function_is_found_where_the_user_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "is_users", lambda file: file == "train.py")
    library: dict[str, object] = {}
    text = "def solve(then):\n    inner(then)\ndef inner(then):\n    then()\n"
    exec(compile(text, "lib.py", "exec"), library)
    stack: list[list[object]] = []
    user = {**library, "look": lambda: stack.append(_stack())}
    exec(compile("def item():\n    x = 1\n    solve(look)\nitem()\n", "train.py", "exec"), user)
    named = {place[0]: place[1:] for place in places_of(stack[0], "")}
    assert named["item"] == ["train.py", 1, "", 0]
    assert named["solve"] == ["lib.py", 1, "train.py", 3]
    assert "inner" not in named, "what a library does within itself is the library's"


def _stack() -> list[tuple[object, int]]:
    frame, found = sys._getframe(1), []
    while frame is not None:
        if frame.f_code.co_filename in ("lib.py", "train.py"):
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return found


def test_the_users_line_of_a_cost() -> None:
    assert FunctionCost("own", "train.py", 7, 0.1, 1.0).users_line == ("train.py", 7)
    assert FunctionCost("solve", "lib.py", 1, 0.1, 1.0, "train.py", 3).users_line == ("train.py", 3)
