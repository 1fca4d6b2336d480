"""Steps as columns: each phase's seconds over all steps, added up once for every chart and number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from flatout.doctor.record import PHASES, Step
from flatout.report.thin import MAX_POINTS, Points, bounds


@dataclass(frozen=True)
class StepTable:
    """All steps of a record; the phases of a step add up to its total."""

    seconds: Mapping[str, Sequence[float]]
    """By phase: the known ones in their order, then others that a record may have."""
    totals_s: Sequence[float]
    sizes: Sequence[int]
    """Samples; 0 where they were not counted."""

    @classmethod
    def of(cls, steps: Sequence[Step]) -> StepTable:
        """Seconds that are missing or make no sense count as none."""
        seen = {phase for step in steps for phase in step.seconds}
        names = [*(phase for phase in PHASES if phase in seen), *sorted(seen - set(PHASES))]
        seconds = {name: [_sane(step.seconds.get(name, 0.0)) for step in steps] for name in names}
        totals_s = [sum(each) for each in zip(*seconds.values(), strict=True)] if names else [0.0] * len(steps)
        return cls(seconds, totals_s, [step.num_samples or 0 for step in steps])

    def __len__(self) -> int:
        return len(self.totals_s)

    def means(self) -> dict[str, float]:
        """Mean seconds of a step by phase."""
        return {name: sum(column) / len(self) for name, column in self.seconds.items()} if len(self) else {}

    def median_s(self) -> float | None:
        """The median step; None without steps."""
        return median(self.totals_s) if len(self) else None

    def wait_share(self, first: int = 0, end: int | None = None) -> float | None:
        """Share of the time of these steps spent waiting for data."""
        waits, total_s = self.seconds.get("wait", ()), sum(self.totals_s[first:end])
        return sum(waits[first:end]) / total_s if total_s else None

    def samples_per_s(self, first: int = 0, end: int | None = None) -> float | None:
        """Samples of these steps over their time; None where batches were not counted."""
        total_s, num = sum(self.totals_s[first:end]), sum(self.sizes[first:end])
        return num / total_s if total_s and num else None

    def waits(self) -> Points:
        """Share of waiting over steps: a ratio of sums, not a mean of ratios, which short steps would pull."""
        given = ((first, self.wait_share(first, end)) for first, end in self._stretches())
        return [(first + 1, value) for first, value in given if value is not None]

    def speeds(self) -> Points:
        """Samples a second over steps."""
        given = ((first, self.samples_per_s(first, end)) for first, end in self._stretches())
        return [(first + 1, value) for first, value in given if value is not None]

    def _stretches(self) -> Iterator[tuple[int, int]]:
        return pairwise(bounds(len(self), MAX_POINTS))


def _sane(seconds: float) -> float:
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0
