"""Matrix tiles (AMX) that a CPU reports and cannot run: found by trying, in a process of its own.

Some virtual machines pass the flags on and not the instructions. The first product in bfloat16 then ends the
process with an illegal instruction: no exception, no word of what was wrong.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

LIMIT = "ONEDNN_MAX_CPU_ISA"
"""Environment variable that keeps torch's products below a level of instructions."""
BELOW_AMX = "AVX512_CORE_FP16"
TRIAL = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
TRIAL_S = 120.0
_CPU_INFO = Path("/proc/cpuinfo")


def has_broken_tiles() -> bool:
    """Whether products in bfloat16 end a process here, as its environment stands. Tried once, some 2 s, where
    the CPU reports tiles; nowhere else."""
    return _reports_tiles() and _dies(os.environ.get(LIMIT))


def _reports_tiles() -> bool:
    try:
        return "amx_tile" in _CPU_INFO.read_text()
    except OSError:  # not Linux, where programs must ask before they use tiles
        return False


@cache
def _dies(limit: str | None) -> bool:
    """Whether the trial dies of an illegal instruction; any other failure says nothing of the CPU."""
    command = [sys.executable, "-c", TRIAL]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == -signal.SIGILL
