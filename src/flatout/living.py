"""A process by name: host, number and start; whether it still lives can be asked on its own host alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

SLACK_S = 1.0
"""Starts of one process that two looks may differ by where only the clock tells them; a number that was given
out again differs by more."""


def this_process() -> dict[str, Any]:
    """What `is_dead` takes, as plain values."""
    return {
        "host": socket.gethostname(),
        "numbered_by": _numbered_by(),
        "pid": os.getpid(),
        "started": psutil.Process().create_time(),
        "ticks": _ticks(os.getpid()),
    }


def is_known_here(process: Mapping[str, Any]) -> bool:
    """Whether its number means the same here: containers and copied machines may share a host's name."""
    return process.get("host") == socket.gethostname() and process.get("numbered_by") == _numbered_by()


def _numbered_by() -> str:
    """Who gives numbers to processes: one start of a machine, or a container on it; empty where nobody says."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def is_dead(process: Mapping[str, Any]) -> bool:
    """True only for a process of this host that is gone, or whose number another process has now."""
    if process.get("host") != socket.gethostname():
        return False
    try:
        found = psutil.Process(int(process["pid"]))
        if found.status() == psutil.STATUS_ZOMBIE:  # ended, and nobody has asked how
            return True
        return _is_other(process, found)
    except (psutil.NoSuchProcess, KeyError, ValueError, TypeError, OverflowError):
        return True
    except psutil.AccessDenied:
        return False


def _is_other(process: Mapping[str, Any], found: psutil.Process) -> bool:
    """Whether another process has the number now; a clock that was set moves every start that is told by it."""
    ticks = _ticks(found.pid)
    if ticks is not None and process.get("ticks") is not None and is_known_here(process):
        return bool(ticks != process["ticks"])
    return abs(found.create_time() - float(process["started"])) > SLACK_S


def _ticks(number: int) -> int | None:
    """The start of a process since that of the machine, which no clock changes; None where nobody says."""
    try:
        text = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[19])  # behind the name, which may hold blanks
    except (OSError, IndexError, ValueError):
        return None
