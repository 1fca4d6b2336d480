"""A cap on the memory of a process that tries something out and may die of it."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from flatout.train.largest_batch import MEMORY_SHARE

OOM_SCORE = Path("/proc/self/oom_score_adj")
FIRST_TO_GO = "1000"


def cap_device(device: torch.device) -> None:
    """So large a share of the memory of the GPU that is used, and of no other."""
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(MEMORY_SHARE, device)


def cap_memory(cap_bytes: int) -> None:
    """So much more private memory than now, on Linux; mapped stores do not count.

    Processes that it starts have a cap of their own each. Should the system run out of memory all the same,
    it ends this process and those before any other.
    """
    if sys.platform == "linux":
        import resource

        used = int(psutil.Process().memory_info().data)
        resource.setrlimit(resource.RLIMIT_DATA, (used + cap_bytes, used + cap_bytes))
        with suppress(OSError):  # not every container has it
            OOM_SCORE.write_text(FIRST_TO_GO)
