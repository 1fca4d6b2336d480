"""How often each function is called for one sample: counted once, by a trace of one item in the warm-up."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

MAX_EVENTS = 20_000
"""A sample that makes more calls is not traced to its end."""

Place = tuple[str, str, int]


def count_calls(read: Callable[[], Any]) -> tuple[Any, Counter[Place]]:
    """What `read` gives, and the calls that it made, by function, file and line of its definition.

    A profiler of the user's own is left alone: then there are no counts.
    """
    counts: Counter[Place] = Counter()
    if sys.getprofile() is not None:
        return read(), counts
    left = MAX_EVENTS

    def trace(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal left
        if event == "call":
            code = frame.f_code
            counts[code.co_qualname, code.co_filename, code.co_firstlineno] += 1
        left -= 1
        if left <= 0:
            sys.setprofile(None)

    sys.setprofile(trace)
    try:
        return read(), counts
    finally:
        sys.setprofile(None)
