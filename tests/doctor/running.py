"""Run a script of the tests under observation, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.doctor import scripts

from flatout.doctor.observe.run import observe
from flatout.doctor.observe.settings import ObserveSettings
from flatout.doctor.record import DoctorRecord

FEW = ObserveSettings(num_steps=20, num_warmup=5)
ONLY_STEPS = ObserveSettings(num_steps=20, num_warmup=5, measures_ceiling=False)


def run(
    folder: Path, text: str, *arguments: str, settings: ObserveSettings = ONLY_STEPS, module: str | None = None
) -> DoctorRecord:
    """Observe the text as a script, or a module that stands beside it."""
    path = scripts.write(folder, text)
    before = Path.cwd()
    os.chdir(folder)
    try:
        return observe(None if module else path, module, arguments, settings, stdout=subprocess.DEVNULL)
    finally:
        os.chdir(before)
