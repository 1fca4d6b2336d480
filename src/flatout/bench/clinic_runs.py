"""The clinic's scripts run as they are, ill and cured by turns: how many times as fast the cure makes them."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from flatout.errors import FlatoutError

NUM_STEPS = 108
"""The scripts leave out the first 8: a hundred steps hold two or more of what comes every fiftieth."""
MEAN_STEP = re.compile(r"^mean step ([0-9.]+) s$", re.MULTILINE)
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Cured:
    """What the cure gives: the ratio of step times, of each round and in the middle."""

    gain: float
    rounds: tuple[float, ...]


def measure_cure(script: Path, seed: int, rounds: int) -> Cured:
    """Run the script and its cured self by turns, every second round the other way round."""
    ratios = []
    for number in range(rounds):
        order = (False, True) if number % 2 == 0 else (True, False)
        steps_s = {is_cured: run_script(script, seed, is_cured=is_cured) for is_cured in order}
        ratios.append(steps_s[False] / steps_s[True])
    return Cured(statistics.median(ratios), tuple(ratios))


def run_script(script: Path, seed: int, *, is_cured: bool = False, num_steps: int = NUM_STEPS) -> float:
    """Seconds a step, as the script says.

    Raises:
        FlatoutError: the script failed, or said nothing.
    """
    command = [sys.executable, str(script), "--seed", str(seed), "--steps", str(num_steps)]
    command += ["--cured"] if is_cured else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    found = MEAN_STEP.search(done.stdout)
    if done.returncode or found is None:
        raise FlatoutError(
            f"{script.name} --seed {seed} ended with {done.returncode} and no mean step:\n{done.stderr[-2000:]}"
        )
    return float(found[1])
