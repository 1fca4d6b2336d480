"""What the processor calls itself."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name() -> str:
    """Its model where the system tells it, its architecture otherwise."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
