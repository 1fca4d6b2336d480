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
        "numbered_by": _numbered_by(),
        "pid": os.getpid(),
        "started": psutil.Process().create_time(),
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
        is_other = abs(found.create_time() - float(process["started"])) > SLACK_S
        return is_other or found.status() == psutil.STATUS_ZOMBIE  # ended, and nobody has asked how
    except (psutil.NoSuchProcess, KeyError, ValueError, TypeError, OverflowError):
        return True
    except psutil.AccessDenied:
        return False
