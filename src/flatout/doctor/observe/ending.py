"""How a script ended: by itself, stopped after enough steps, or by an error, and which of several it is."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flatout.doctor.launch.run import GRACE_S, Ended
from flatout.doctor.record import Exit
from flatout.doctor.steps.trace import Trace

ROOT_CAUSE = re.compile(r"Root Cause.*?\brank\s*:\s*(\d+).*?exitcode\s*:\s*-(\d+) \(pid: (\d+)\)", re.DOTALL)
"""In torchrun's ChildFailedError."""
Told = Mapping[str, Any]
"""What one process wrote about its own end; see `flatout.doctor.child.exit`."""


def read_exits(folder: Path) -> dict[int, Told]:
    """By process; one that a full disk cut off says nothing."""
    return {int(path.stem.rpartition("-")[2]): _read(path) for path in folder.glob("exit-*.json")}


def exit_of(ended: Ended, exits: Mapping[int, Told], traces: Sequence[Trace]) -> Exit:
    """The script's own end. Whatever fails because it was stopped, or in another program, is none of it."""
    stops = [trace.stopped_at for trace in traces if trace.stopped_at is not None]
    if stops and not ended.was_interrupted:
        crashed = [told for told in _own(ended, exits) if _at(told) < min(stops)]
        if crashed:
            return Exit(ended.code or 1, False, crashed[0]["error"])
        killed = _killed(exits.get(ended.pid, {}).get("error") or "")
        was_stopped = {trace.pid for trace in traces if trace.stopped_at is not None}
        if killed is not None and killed.pid not in was_stopped | exits.keys():
            return Exit(ended.code or 1, False, killed.text)
        return Exit(0, True)  # whatever code the script made of it
    if not ended.code:
        return Exit(0, False)
    own = _own(ended, exits) or _failed(exits.values())
    error = own[0]["error"] if own else None
    if error is not None and (killed := _killed(error)) is not None:
        error = f"{error.rstrip()}\n{killed.text}"
    if error is None and ended.was_killed:
        error = f"it did not end within {GRACE_S:.0f} s after it was asked to, so it was killed"
    if error is None and ended.code > 128:
        error = f"ended by signal {ended.code - 128}"
    return Exit(ended.code, False, error)


class Killed(NamedTuple):
    """A rank that a signal ended: it had no time for a traceback."""

    rank: int
    signal: int
    pid: int

    @property
    def text(self) -> str:
        """What to look at next, too: the system kills whoever takes the last memory."""
        hint = "; the kernel's log says if memory ran out (dmesg)" if self.signal == signal.SIGKILL else ""
        return f"rank {self.rank} was ended by signal {self.signal}, without a traceback{hint}"


def _killed(error: str) -> Killed | None:
    """The rank that torchrun names as the first to fail, if a signal ended it."""
    found = ROOT_CAUSE.search(error)
    return None if found is None else Killed(*map(int, found.groups()))


def _own(ended: Ended, exits: Mapping[int, Told]) -> list[Told]:
    """Errors of the script itself: of its ranks, then of their launcher, which only says that one failed."""
    ranks = [told for told in exits.values() if told.get("is_rank") and not _is_ranks_child(told, exits)]
    launched = exits.get(ended.pid, {})
    return [*_failed(each for each in ranks if each is not launched), *_failed([launched])]


def _is_ranks_child(told: Told, exits: Mapping[int, Told]) -> bool:
    """A program that a rank has started: it inherits the rank's environment."""
    return bool(exits.get(told.get("parent", 0), {}).get("is_rank"))


def _failed(all_told: Iterable[Told]) -> list[Told]:
    """The first to fail first: the others often fail because of it."""
    return sorted((told for told in all_told if told.get("error")), key=lambda told: (_at(told), _rank(told)))


def _at(told: Told) -> float:
    return float(told.get("at") or 0.0)


def _rank(told: Told) -> int:
    return int(told.get("rank") or 0)


def _read(path: Path) -> Told:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}
