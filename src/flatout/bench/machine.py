"""The machine that was measured: what it is, and what else it was doing meanwhile."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import flatout
from flatout.processor import cpu_name

LIBRARIES = (
    "numpy",
    "h5py",
    "pyarrow",
    "isal",
    "scipy",
    "soxr",
    "soundfile",
    "nibabel",
    "torch",
    "numba",
    "monai",
    "kornia",
    "litdata",
)


def describe(scratch: Path | None = None) -> dict[str, Any]:
    """Facts without which no figure means anything; the speed of the disk if there is a folder on it."""
    facts = {
        "date": datetime.now(UTC).date().isoformat(),
        "flatout": flatout.__version__,
        "cpu": cpu_name(),
        "cores": count_cores(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "libraries": {name: found for name in LIBRARIES if (found := _version(name))},
    }
    if scratch is not None:
        facts["disk_write_mb_per_s"] = round(disk_write_mb_per_s(scratch))
    return facts


def count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def disk_write_mb_per_s(folder: Path, num_bytes: int = 256 << 20) -> float:
    """Speed of writing shard-sized files that are synced."""
    block = np.random.default_rng(0).bytes(64 << 20)
    started = time.perf_counter()
    for number in range(num_bytes // len(block)):
        path = folder / f"disk{number}"
        with open(path, "wb") as file:
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
    return num_bytes / 1e6 / (time.perf_counter() - started)


class CpuWatch:
    """Tells how much of the machine other processes took since it was made."""

    def __init__(self) -> None:
        self._started = (time.perf_counter(), _busy_s(), _own_s())

    def others(self) -> float:
        """CPU seconds of others a second and core, 0 to 1; nan where the system does not tell."""
        wall, busy, own = (
            now - then
            for now, then in zip((time.perf_counter(), _busy_s(), _own_s()), self._started, strict=True)
        )
        return max(0.0, busy - own) / (wall * (os.cpu_count() or 1))


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(
        times.user + times.system + times.nice + getattr(times, "irq", 0) + getattr(times, "softirq", 0)
    )


def _own_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    if sys.platform == "win32":
        return float("nan")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
