"""How a process of the script ends: its own traceback, without the doctor's frames, for the record."""

from __future__ import annotations

import atexit
import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

OWN_FOLDER = f"{Path(__file__).parents[1]}{os.sep}"
"""Where all of the doctor is: its patches stand between the script and torch."""


def watch_exit(folder: Path) -> None:
    """Note at the end of this process what ended it, and when: the clock is the same in all processes."""
    noted: dict[str, Any] = {"error": None, "at": None, "rank": own_rank(), "owner": os.getpid()}
    noted |= {"is_rank": "RANK" in os.environ, "parent": os.getppid()}
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        hide_own_frames(error)
        trace = without_own_frames(trace)
        error.__traceback__ = trace
        noted["error"], noted["at"] = "".join(traceback.format_exception(kind, error, trace)), perf_counter()
        before(kind, error, trace)

    def write() -> None:
        if os.getpid() != noted["owner"]:
            return
        last = getattr(sys, "last_value", None)  # where another hook took the place of ours
        if noted["error"] is None and last is not None:
            hide_own_frames(last)
            noted["error"], noted["at"] = "".join(traceback.format_exception(last)), perf_counter()
        place = folder / f"exit-{os.getpid()}.json"
        with suppress(OSError):  # a process that outlived the observation, or a full disk
            place.with_suffix(".part").write_text(json.dumps(noted), encoding="utf-8")
            place.with_suffix(".part").rename(place)

    sys.excepthook = hook
    atexit.register(write)


def own_rank() -> int:
    """Of this process among those that train together."""
    given = os.environ.get("RANK", "")
    return int(given) if given.isdecimal() else 0


def hide_own_frames(error: BaseException) -> None:
    """Take our frames out of an error, of those that led to it, and of those of a group."""
    waiting, seen = [error], set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = without_own_frames(each.__traceback__)
        waiting += [other for other in (each.__cause__, each.__context__) if other is not None]
        waiting += each.exceptions if isinstance(each, BaseExceptionGroup) else ()


def without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The same traceback as if nobody had watched."""
    first: TracebackType | None = None
    last: TracebackType | None = None
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(OWN_FOLDER):
            if last is None:
                first = trace
            else:
                last.tb_next = trace
            last = trace
        trace = trace.tb_next
    if last is not None:
        last.tb_next = None
    return first
