"""What a container may use: memory and cores that its control groups leave, versions 1 and 2."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

UNLIMITED = 1 << 60
"""Version 1 writes a number of about 2**63 for no limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """None where nothing is limited."""

    memory_bytes: int | None = None
    """The smallest limit of this group and those around it."""
    free_bytes: int | None = None
    """What may still be taken before one of them is reached; pages of files count as free."""
    num_cores: int | None = None
    """Cores' worth of time, rounded up."""


def read_limits(root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc/self/cgroup")) -> Limits:
    """The limits of this process; none of them where there are no control groups."""
    groups = _groups(proc)
    memory = [*_memory_v2(root, groups.get("")), *_memory_v1(root, groups.get("memory"))]
    cores = [*_cores_v2(root, groups.get("")), *_cores_v1(root, groups.get("cpu"))]
    return Limits(
        memory_bytes=min((limit for limit, _ in memory), default=None),
        free_bytes=min((max(0, limit - used) for limit, used in memory), default=None),
        num_cores=min(cores, default=None),
    )


def _groups(proc: Path) -> dict[str, str]:
    """Path of this process's group by controller; version 2 has no name."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        _, names, path = line.split(":", 2)
        found.update(dict.fromkeys(names.split(","), path))
    return found


def _folders(root: Path, path: str | None) -> Iterator[Path]:
    """The group's folder and all above it; in a container the root itself may be the group."""
    if path is None or not root.is_dir():
        return
    folder = root / path.lstrip("/")
    while folder != root:
        if folder.is_dir():
            yield folder
        folder = folder.parent
    yield root


def _memory_v2(root: Path, path: str | None) -> Iterator[tuple[int, int]]:
    for folder in _folders(root, path):
        limit = _number(folder / "memory.max")
        if limit is not None:
            yield limit, (_number(folder / "memory.current") or 0) - _file_bytes(folder, "")


def _memory_v1(root: Path, path: str | None) -> Iterator[tuple[int, int]]:
    for folder in _folders(root / "memory", path):
        limit = _number(folder / "memory.limit_in_bytes")
        if limit is not None and limit < UNLIMITED:
            yield limit, (_number(folder / "memory.usage_in_bytes") or 0) - _file_bytes(folder, "total_")


def _cores_v2(root: Path, path: str | None) -> Iterator[int]:
    for folder in _folders(root, path):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            yield max(1, math.ceil(int(quota) / int(period)))


def _cores_v1(root: Path, path: str | None) -> Iterator[int]:
    for folder in _folders(root / "cpu", path):
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            yield max(1, math.ceil(quota / period))


def _file_bytes(folder: Path, prefix: str) -> int:
    """Pages of files that the group is charged for: a store that was read counts here, and can be dropped."""
    wanted = {f"{prefix}active_file", f"{prefix}inactive_file"}
    pairs = (line.split() for line in _text(folder / "memory.stat").splitlines())
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in wanted)


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.lstrip("-").isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
