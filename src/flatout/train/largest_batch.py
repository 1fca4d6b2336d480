"""`batch_size: auto`: the largest batch that trains, tried out by a process that may run out of memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from flatout.config import Config
from flatout.errors import ConfigError
from flatout.loader import describe_machine

MEMORY_SHARE = 0.8
"""Part of the free memory, or of the device's, that a training may take."""
MOST = 4096
"""Larger batches are not tried: they train worse, and each trial takes longer."""
BUDGET_S = 120.0
"""After this time the largest that has trained so far is taken."""


def find_batch_size(config: Config, num_train: int, num_devices: int) -> tuple[int, str]:
    """The largest batch size of which two steps fit into memory, and a note on it.

    Raises:
        ConfigError: there are several devices, which would each have to find the same.
    """
    if num_devices > 1:
        raise ConfigError(
            "batch_size: auto looks for the largest batch of one device; give a number for several"
        )
    most = max(1, min(MOST, num_train))
    cap_bytes = int(describe_machine().free_bytes * MEMORY_SHARE)
    with tempfile.TemporaryDirectory(prefix="flatout-batch-") as folder:
        request = Path(folder) / "request.json"
        document = {
            "config": config.model_dump(mode="json"),
            "most": most,
            "cap_bytes": cap_bytes,
            "output_dir": folder,
        }
        request.write_text(json.dumps(document), encoding="utf-8")
        died = _run_child(request, config.config_dir)
        tried = [json.loads(line) for line in _lines(request.with_suffix(".tried"))]
    best = max((row["size"] for row in tried if row["fits"]), default=1)
    return best, _note(best, most, tried, died)


def with_batch_size(config: Config, size: int) -> Config:
    """The config with this size for every split that has none of its own, and nothing left to find."""
    found = config.model_copy(update={"batch_size": size, "find_batch_size": False})
    found.model_fields_set.add("batch_size")
    return found


def search(fits: Callable[[int], bool], most: int) -> int:
    """The largest size up to `most` that fits, to an eighth of it; 1 where none does.

    Doubled until one does not fit, then halved in between; what fits is taken to fit in every smaller size.
    """
    good, size = 0, 1
    while size <= most and fits(size):
        good, size = size, size * 2 if size * 2 <= most or size == most else most
        if good == most:
            return good
    bad = size
    while bad - good > max(1, good // 8):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return max(good, 1)


def _run_child(request: Path, config_dir: Path | None) -> str | None:
    """The child may die of it: what it had tried until then stands in its file. Why it died, or None, out."""
    places = [str(config_dir)] if config_dir is not None else []
    places += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*places, str(Path.cwd())])}
    command = [sys.executable, "-m", "flatout.train.try_batches", str(request)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=2 * BUDGET_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode < 0:
        return f"signal {-done.returncode}"
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return "".join(last) or "no word" if done.returncode else None


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _note(best: int, most: int, tried: list[dict[str, int]], died: str | None) -> str:
    too_large = [row["size"] for row in tried if not row["fits"]]
    if not tried:
        why = "" if died is None else f" ({died})"
        return f"batch_size: auto is 1: nothing could be tried out{why}; a number says what went wrong"
    if too_large:
        return (
            f"batch_size: auto is {best}: {min(too_large)} does not fit into {MEMORY_SHARE:.0%} of the memory"
        )
    if died is not None:
        return f"batch_size: auto is {best}: the process that tried the next larger one died of it ({died})"
    why = "the whole train split" if best == most else "larger ones took too long to try"
    return f"batch_size: auto is {best}: {why}"
