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
FIRST_PAUSE_S, MOST_PAUSE_S, WIDER = 4.0, 60.0, 1.5
"""Between two things that are said: soon at first, once a minute in a script that runs for hours."""
FEW = 3
"""Steps from which on it can be told how long the others take."""


@dataclass(frozen=True)
class Progress:
    """Of one process that trains."""

    num_steps: int
    """Those that are over."""
    num_wanted: int | None
    """None: the script runs to its end."""
    seconds: float
    """Since its first step."""
    time_limit_s: float
    """Fewer steps do after this."""
    is_enough: bool
    """The steps are seen; what comes now is replayed or tried."""
    rank: int = 0

    def text(self) -> str:
        """`35 of 65 steps seen, 6.2 s left`."""
        if self.is_enough:
            seen = f"{count(self.num_steps, 'step')} seen in {duration(self.seconds)}"
            return f"{seen}; now steps with batches from memory, to know what a perfect loader could give"
        if self.num_wanted is None:
            return f"{count(self.num_steps, 'step')} seen"
        left_s = self.seconds / max(self.num_steps, 1) * max(0, self.num_wanted - self.num_steps)
        left_s = min(left_s, max(0.0, self.time_limit_s - self.seconds))
        return f"{self.num_steps:,} of {self.num_wanted:,} steps seen, {duration(left_s)} left"


def write_progress(folder: Path, progress: Progress) -> None:
    """Leave it where the command looks; the observation does not depend on it."""
    with suppress(OSError):
        (folder / f"progress-{os.getpid()}.json").write_text(json.dumps(asdict(progress)), encoding="utf-8")


class Teller:
    """Says how far the script is, when there is something new; of several ranks the first."""

    def __init__(
        self, folder: Path, say: Callable[[str], None], clock: Callable[[], float] = monotonic
    ) -> None:
        self._folder, self._say, self._clock = folder, say, clock
        self._next_look = self._next_said = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._told: Progress | None = None

    def look(self) -> None:
        """Say what is new, if it is time to."""
        if self._clock() < self._next_look:
            return
        self._next_look = self._clock() + LOOK_S
        found = self._newest()
        if found is None or found == self._told or found.num_steps < FEW:
            return
        if self._clock() >= self._next_said or found.is_enough:
            self._told = found
            self._next_said = self._clock() + self._pause_s
            self._pause_s = min(MOST_PAUSE_S, WIDER * self._pause_s)
            self._say(found.text())

    def _newest(self) -> Progress | None:
        """What a first rank wrote last: folds one after the other are several of these."""
        found = [made for path in self._folder.glob("progress-*.json") if (made := _read(path))]
        firsts = [made for made in found if made[1].rank == 0]
        return max(firsts, key=lambda made: made[0])[1] if firsts else None


def _read(path: Path) -> tuple[float, Progress] | None:
    try:
        return path.stat().st_mtime, Progress(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # it is just being written
        return None
