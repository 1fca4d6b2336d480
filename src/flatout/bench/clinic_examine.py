"""One script of the clinic under the doctor, with its remedies tried, through the command as a user has it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from flatout.doctor.record import DoctorRecord, read_record
from flatout.errors import FlatoutError

TIMEOUT_S = 900.0
RUN = "from flatout.cli.main import main; main()"


def examine(script: Path, seed: int, num_steps: int) -> DoctorRecord:
    """The doctor's record of the script, verdict, remedies and trials in it.

    Raises:
        FlatoutError: the doctor failed.
    """
    command = [sys.executable, "-c", RUN, "doctor", "--try", "--json", "--steps", str(num_steps), str(script)]
    command += ["--seed", str(seed)]
    with tempfile.TemporaryDirectory(prefix="flatout-clinic-") as folder:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        path = Path(folder) / "record.json"
        path.write_text(done.stdout, encoding="utf-8")
        if done.returncode or not done.stdout.lstrip().startswith("{"):
            raise FlatoutError(
                f"the doctor of {script.name} ended with {done.returncode}:\n{done.stderr[-3000:]}"
            )
        return read_record(path)
