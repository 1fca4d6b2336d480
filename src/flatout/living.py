"""A process by name: host, number and start; whether it still lives can be asked on its own host alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

SLACK_S = 1.0
"""Starts of one process that two looks may differ by; a number that was given out again differs by more."""


def this_process() -> dict[str, Any]:
    """What `is_dead` takes, as plain values."""
    return {
        "host": socket.gethostname(),
        "numbers": _numbers(),
        "pid": os.getpid(),
        "started": psutil.Process().create_time(),
    }


def is_dead(process: Mapping[str, Any]) -> bool:
    """True only for a process of this host that is gone, or whose number another process has now."""
    if process.get("host") != socket.gethostname() or process.get("numbers", _numbers()) != _numbers():
        return False
    try:
        found = psutil.Process(int(process["pid"]))
        is_other = abs(found.create_time() - float(process["started"])) > SLACK_S
        return is_other or found.status() == psutil.STATUS_ZOMBIE  # ended, and nobody has asked how
    except (psutil.NoSuchProcess, KeyError, ValueError, TypeError, OverflowError):
        return True
    except psutil.AccessDenied:
        return False


def _numbers() -> str:
    """By whose count processes are numbered: a container may have its host's name, and numbers of its own."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # only Linux has several counts
        return ""
