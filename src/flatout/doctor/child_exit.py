"""How a process of the script ends: its own traceback, without the doctor's frames, for the record."""

from __future__ import annotations

import atexit
import json
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

OWN_FOLDER = str(Path(__file__).parent)


def watch_exit(folder: Path) -> None:
    """Note at the end of this process what ended it."""
    noted: dict[str, Any] = {"error": None, "rank": int(os.environ.get("RANK", "0")), "owner": os.getpid()}
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        trace = without_own_frames(trace)
        error.__traceback__ = trace
        noted["error"] = "".join(traceback.format_exception(kind, error, trace))
        before(kind, error, trace)

    def write() -> None:
        if os.getpid() != noted["owner"]:
            return
        last = getattr(sys, "last_value", None)  # where another hook took the place of ours
        if noted["error"] is None and last is not None:
            noted["error"] = "".join(traceback.format_exception(last))
        (folder / f"exit-{os.getpid()}.json").write_text(json.dumps(noted), encoding="utf-8")

    sys.excepthook = hook
    atexit.register(write)


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
