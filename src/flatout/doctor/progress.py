"""Progress: how far an observation is. The script's process writes it down, the command says it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

from flatout.doctor.rules.words import count, duration

LOOK_S = 1.0
"""Between two looks of the command: a look is one listing of a folder."""


@dataclass(frozen=True)
class Progress:
    """Of one process that trains."""

    num_steps: int
    of: int | None
    """None: the script runs to its end."""
    seconds: float
    """Since its first step."""
    is_enough: bool
    """The steps are seen; what comes now is replayed or tried."""

    def text(self) -> str:
        """`35 of 65 steps seen, 6.2 s left`."""
        if self.is_enough:
            seen = f"{count(self.num_steps, 'step')} seen in {duration(self.seconds)}"
            return f"{seen}; now steps with batches from memory, to know what a perfect loader could give"
        if self.of is None:
            return f"{count(self.num_steps, 'step')} seen"
        left_s = self.seconds / max(self.num_steps, 1) * (self.of - self.num_steps)
        return f"{self.num_steps:,} of {self.of:,} steps seen, {duration(left_s)} left"


def write_progress(folder: Path, progress: Progress) -> None:
    """Leave it where the command looks; the observation does not depend on it."""
    with suppress(OSError):
        (folder / f"progress-{os.getpid()}.json").write_text(json.dumps(asdict(progress)), encoding="utf-8")


class Teller:
    """Says how far the script is, once for each thing that it has written down; of several ranks the first."""

    def __init__(
        self, folder: Path, say: Callable[[str], None], clock: Callable[[], float] = monotonic
    ) -> None:
        self._folder, self._say, self._clock = folder, say, clock
        self._next_look = 0.0
        self._told: Progress | None = None

    def look(self) -> None:
        """Say what is new, if it is time to look."""
        if self._clock() < self._next_look:
            return
        self._next_look = self._clock() + LOOK_S
        found = self._read()
        if found is not None and found != self._told:
            self._told = found
            self._say(found.text())

    def _read(self) -> Progress | None:
        path = min(self._folder.glob("progress-*.json"), default=None)
        if path is None:
            return None
        try:
            return Progress(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # it is just being written
            return None
