"""Machine: what the decisions of the loader rest on, gathered in one place so that tests can make one up."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from flatout.store.cgroup import Limits, read_limits

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Gpu:
    """The device that a training of one process uses."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """What this process may use: a container's limits count, not those of the host around it."""

    system: str
    """linux, darwin or win32, as `sys.platform` says it."""
    num_cores: int
    memory_bytes: int
    free_bytes: int
    """Memory that may still be taken; pages of files count as free."""
    shared_bytes: int | None = None
    """Free room in /dev/shm, through which worker processes hand over batches; None: there is none."""
    gpu: Gpu | None = None
    """The first CUDA device."""

    @property
    def is_windows(self) -> bool:
        return self.system == "win32"

    @property
    def has_cuda(self) -> bool:
        return self.gpu is not None


def describe_machine(
    *, limits: Limits | None = None, shared_memory: Path = SHARED_MEMORY, look_for_gpu: bool = True
) -> Machine:
    """Look at cores, memory, shared memory and the GPU of this machine, or of this container.

    Args:
        limits: those of the control groups; read from the system by default.
    """
    limits = read_limits() if limits is None else limits
    memory = psutil.virtual_memory()
    return Machine(
        system=sys.platform,
        num_cores=_smaller(count_cores(), limits.num_cores),
        memory_bytes=_smaller(int(memory.total), limits.memory_bytes),
        free_bytes=_smaller(int(memory.available), limits.free_bytes),
        shared_bytes=shutil.disk_usage(shared_memory).free if shared_memory.is_dir() else None,
        gpu=_find_gpu() if look_for_gpu else None,
    )


def count_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _find_gpu() -> Gpu | None:
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Gpu(str(found.name), int(found.total_memory))


def _smaller(value: int, limit: int | None) -> int:
    return value if limit is None else min(value, limit)
