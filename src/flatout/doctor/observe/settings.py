"""ObserveSettings: how long to look and what to measure; the command and the script's process share it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

SETTINGS_FILE = "settings.json"


@dataclass(frozen=True)
class ObserveSettings:
    """What the observer does."""

    num_steps: int = 60
    """Training steps that are measured, after the warm-up."""
    num_warmup: int = 5
    is_full: bool = False
    """Let the script run to its end, with its own results: nothing is replayed, so no ceiling by replay."""
    measures_ceiling: bool = True
    tries: bool = False
    """Wait for trials after the ceiling (`flatout doctor --try`)."""
    time_limit_s: float = 120.0
    """Observation ends after this time even with fewer steps, if ten were seen. Not under several ranks."""
    is_bare: bool = False
    """Only count steps: what the overhead of everything else is compared with."""

    def write(self, folder: Path) -> None:
        """Put them where the script's processes look."""
        (folder / SETTINGS_FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_settings(folder: Path) -> ObserveSettings:
    """The settings of a run folder."""
    return ObserveSettings(**json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8")))
