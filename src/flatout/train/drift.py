"""Drift: the share of each step that training waits in, watched for a rise that lasts.

A rise is one that stands in each of the last three windows of 16 steps. Batches are made in units of up to 16,
so that a lasting shortage shows in every window, and a single slow step in one only. A lasting rise of more
than twice the margin is noticed within 48 steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

WINDOW_STEPS = 16
NUM_WINDOWS = 3
"""Windows in a row that must be above the threshold."""
NUM_KNOWN = 20
"""Windows before those that the usual level is the median of."""
LEAST_KNOWN = 4
"""Windows that must be known before anything is judged."""
MARGIN = 0.05
"""Rise of the wait share that is worth an answer."""
SPREADS = 4.0
"""In median deviations of the usual windows: where waits scatter, more than `MARGIN` is asked for."""


@dataclass(frozen=True)
class Drift:
    """A rise that lasts."""

    usual: float
    """Wait share before it."""
    now: float
    """Wait share of the last windows."""


class DriftDetector:
    """Seconds waited and seconds of each step in; a Drift out when the wait share has risen for good."""

    def __init__(self) -> None:
        self.start_anew()

    def start_anew(self) -> None:
        """Forget everything: the level from here on is the usual one."""
        self._recent: deque[tuple[float, float]] = deque(maxlen=NUM_WINDOWS * WINDOW_STEPS)
        self._old: list[tuple[float, float]] = []
        self._usual: deque[float] = deque(maxlen=NUM_KNOWN)

    def add(self, wait_s: float, step_s: float) -> Drift | None:
        """One more step. After a Drift the rise goes on being reported until `start_anew`."""
        if len(self._recent) == self._recent.maxlen:
            self._forget(self._recent[0])
        self._recent.append((wait_s, step_s))
        if len(self._usual) < LEAST_KNOWN:
            return None
        usual, threshold = self._threshold()
        if share_of(list(self._recent)[-WINDOW_STEPS:]) <= threshold:  # nearly always: the others need no look
            return None
        return self._risen(usual, threshold)

    def _forget(self, step: tuple[float, float]) -> None:
        """A step that is too long ago to be part of a rise belongs to the usual level."""
        self._old.append(step)
        if len(self._old) == WINDOW_STEPS:
            self._usual.append(share_of(self._old))
            self._old = []

    def _threshold(self) -> tuple[float, float]:
        usual = median(self._usual)
        spread = median(abs(share - usual) for share in self._usual)
        return usual, usual + max(MARGIN, SPREADS * spread)

    def _risen(self, usual: float, threshold: float) -> Drift | None:
        steps = list(self._recent)
        starts = range(0, NUM_WINDOWS * WINDOW_STEPS, WINDOW_STEPS)
        if len(steps) < NUM_WINDOWS * WINDOW_STEPS:
            return None
        if any(share_of(steps[start : start + WINDOW_STEPS]) <= threshold for start in starts):
            return None
        return Drift(usual, share_of(steps))


def share_of(steps: list[tuple[float, float]]) -> float:
    """Seconds waited / seconds of these steps."""
    total = sum(step_s for _, step_s in steps)
    return sum(wait_s for wait_s, _ in steps) / total if total > 0 else 0.0
