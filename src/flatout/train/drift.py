"""Drift: the share of each step that training waits in, watched for a rise that lasts.

There are two signs of one. Each of the last three windows of 16 steps is above the usual: batches are made in
units of up to 16, so that a lasting shortage shows in every window, and a single slow step in one only. Such a
rise, of more than twice the margin, is noticed within 48 steps. Or the long waits of the last 96 steps are,
even without the longest: where several threads make units of small batches, waits are long and rare.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

WINDOW_STEPS = 16
NUM_WINDOWS = 3
"""Windows in a row that must be above the threshold."""
LONG_STEPS = 96
"""Steps in which rare waits are looked for; older ones are the usual."""
LONG_WAIT = 3.0
"""In usual steps without their waits: a wait that is longer is a long one."""
NUM_KNOWN = 20
"""Windows that the usual level is taken from."""
LEAST_KNOWN = 4
"""Windows that must be known before anything is judged."""
MARGIN = 0.05
"""Rise of the wait share that is worth an answer."""
SPREADS = 4.0
"""In median deviations of the usual windows: where waits scatter, more than `MARGIN` is asked for."""

Step = tuple[float, float]
"""Seconds waited, and seconds of the whole step."""


@dataclass(frozen=True)
class Drift:
    """A rise that lasts."""

    usual: float
    """Wait share before it."""
    now: float
    """Wait share since."""
    step_s: float
    """Seconds of a step since."""

    @classmethod
    def of(cls, usual: float, steps: Sequence[Step]) -> Drift:
        """To what these steps show."""
        return cls(usual, share_of(steps), sum(step_s for _, step_s in steps) / len(steps))

    @property
    def wait_s(self) -> float:
        """Seconds waited in a step since."""
        return self.now * self.step_s

    @property
    def usual_wait_s(self) -> float:
        """Those that the share before would be, beside what a step computes now."""
        return self.usual / max(1.0 - self.usual, 1e-9) * (self.step_s - self.wait_s)


class DriftDetector:
    """Seconds waited and seconds of each step in; a Drift out when the wait share has risen for good."""

    def __init__(self) -> None:
        self.start_anew()

    def start_anew(self) -> None:
        """Forget everything: the level from here on is the usual one."""
        self._recent: deque[Step] = deque(maxlen=LONG_STEPS)
        self._waited_s = self._total_s = 0.0
        """Sums over them."""
        self._old: list[Step] = []
        self._usual: deque[Step] = deque(maxlen=NUM_KNOWN)
        """Sums over windows."""
        self._level = self._threshold = self._mean = 0.0
        """Median share of the usual windows, what is above it, and their mean."""

    def add(self, wait_s: float, step_s: float) -> Drift | None:
        """One more step. After a Drift the rise goes on being reported until `start_anew`."""
        if len(self._recent) == LONG_STEPS:
            self._forget(self._recent[0])
        self._recent.append((wait_s, step_s))
        self._waited_s += wait_s
        self._total_s += step_s
        if len(self._usual) < LEAST_KNOWN:
            return None
        # Nearly always both say no at once: 4 us a step (CPU time).
        found = self._steady() if share_of(self._last(WINDOW_STEPS)) > self._threshold else None
        if found is None and self._waited_s > (self._mean + MARGIN) * self._total_s:
            found = self._rare()
        return found

    def _forget(self, step: Step) -> None:
        """A step that is too long ago to be part of a rise belongs to the usual level."""
        self._old.append(step)
        self._waited_s -= step[0]
        self._total_s -= step[1]
        if len(self._old) < WINDOW_STEPS:
            return
        self._usual.append((sum(wait_s for wait_s, _ in self._old), sum(step_s for _, step_s in self._old)))
        self._old = []
        shares = [share_of([window]) for window in self._usual]
        self._level, self._mean = median(shares), share_of(self._usual)
        spread = median(abs(share - self._level) for share in shares)
        self._threshold = self._level + max(MARGIN, SPREADS * spread)

    def _steady(self) -> Drift | None:
        """A rise in every window."""
        for number in range(1, NUM_WINDOWS):
            if share_of(self._last(WINDOW_STEPS, number * WINDOW_STEPS)) <= self._threshold:
                return None
        # The first of the windows may have begun before the rise.
        return Drift.of(self._level, self._last((NUM_WINDOWS - 1) * WINDOW_STEPS))

    def _rare(self) -> Drift | None:
        """A rise by waits that are long and rare; one alone, or some close together, are none."""
        usual, steps = self._mean, list(self._recent)
        long_s = LONG_WAIT * median(step_s - wait_s for wait_s, step_s in steps)
        places = [number for number, (wait_s, _) in enumerate(steps) if wait_s > long_s]
        if not places or places[-1] - places[0] < WINDOW_STEPS:
            return None
        waits = [steps[number][0] for number in places]
        counted_s, total_s = sum(waits) - max(waits), sum(step_s for _, step_s in steps) - max(waits)
        if counted_s <= (usual + MARGIN) * total_s:
            return None
        return Drift.of(usual, steps[places[0] :])

    def _last(self, count: int, skipped: int = 0) -> list[Step]:
        """So many steps before the last `skipped`."""
        return list(islice(reversed(self._recent), skipped, skipped + count))


def share_of(steps: Sequence[Step]) -> float:
    """Seconds waited / seconds of these steps."""
    total = sum(step_s for _, step_s in steps)
    return sum(wait_s for wait_s, _ in steps) / total if total > 0 else 0.0
