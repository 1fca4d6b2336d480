"""Epochs: what it takes to begin one, how many steps it has, and what of that the measured steps do not show.

Workers that start anew for each epoch make one step in a while wait for seconds. Whether such a step is among
the measured ones is chance: an epoch that is longer than the observation shows none, and the ceiling, which
goes on over the end of the epoch, does. So what a start takes is told by all that were seen, the median of
them, and counted once an epoch wherever a mean step is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from flatout.doctor.steps.cut import Steps
from flatout.doctor.steps.trace import BlockRow, Trace

BROKEN_OFF = 2 / 3
"""Steps from one `iter(loader)` to the next, in lengths of the loader, below which epochs are broken off."""


@dataclass(frozen=True)
class Epochs:
    """Of the loader that is trained on."""

    start_s: float | None
    """From the end of an epoch to the first batch of the next, the median; None: not seen."""
    length: float | None
    """Steps of an epoch; None: not known."""
    unseen_s: float = 0.0
    """Seconds that a mean step waits longer, or less, than the measured ones did."""
    num_begun: int = 0
    """Epochs that began while the script was observed."""

    @property
    def a_step_s(self) -> float:
        """What the starts take, spread over all steps."""
        return self.start_s / self.length if self.start_s is not None and self.length else 0.0


def epochs_of(trace: Trace, steps: Steps) -> Epochs:
    """From the rows of a process and its measured steps."""
    number = trace.train_number
    known = trace.loader(number) if number is not None else None
    if known is None:
        return Epochs(None, None)
    gaps = _observed(trace, number)
    inside = [seconds for at, seconds in gaps if steps.start <= at < steps.end]
    length = _length(known, len(steps.steps), len(inside))
    begun = sum(same == number for _, _, same in trace.iters)
    found = [seconds for _, seconds in gaps] + starts_of(trace, "base")
    if not found:
        return Epochs(None, length, num_begun=begun)
    start_s = median(found)
    unseen_s = _unseen(steps, inside, start_s, length) if starts_workers(known) and length else 0.0
    return Epochs(start_s, length, unseen_s, begun)


def starts_workers(known: Mapping[str, Any]) -> bool:
    """Whether a loader starts its workers for each epoch."""
    return bool(known.get("num_workers")) and not known.get("persistent_workers")


def starts_of(trace: Trace, name: str) -> list[float]:
    """Seconds of the starts of a source's epochs after the observed steps, in its blocks or outside of them."""
    rows = trace.restarts
    return [end - start for by, start, end in rows if by == name or _is_in_block(trace.blocks, name, start)]


def restarted_s(trace: Trace, block: BlockRow) -> float:
    """Seconds of a block that went into starts of epochs."""
    return sum(end - start for _, start, end in trace.restarts if block.start <= start < block.end)


def _is_in_block(blocks: Sequence[BlockRow], name: str, at: float) -> bool:
    return any(block.name == name and block.start <= at < block.end for block in blocks)


def _observed(trace: Trace, number: int | None) -> list[tuple[float, float]]:
    """When each epoch after the first began, and its start in seconds: the end of the one before is in it.

    Old workers end inside the `next` that says that there is no more; what the script does then is not counted.
    """
    own = [each for each in trace.nexts if each.number == number]
    until = trace.observed_until if trace.observed_until is not None else float("inf")
    begins = [(start, end) for start, end, same in trace.iters if same == number and start <= until]
    found = []
    for start, end in begins[1:]:
        first = next((each for each in own if each.start >= end), None)
        last = next((each for each in reversed(own) if each.end <= start), None)
        if first is None or not first.num_samples:
            continue
        ended_s = last.end - last.start if last is not None and not last.num_samples else 0.0
        found.append((start, ended_s + end - start + first.end - first.start))
    return found


def _length(known: Mapping[str, Any], num_steps: int, num_inside: int) -> float | None:
    """Steps of an epoch; of scripts that begin anew before its end as many as were seen."""
    length: float | None = known.get("epoch_steps")
    if num_inside > 1 and (length is None or num_steps / num_inside < BROKEN_OFF * length):
        return num_steps / num_inside
    return length


def _unseen(steps: Steps, inside: Sequence[float], start_s: float, length: float) -> float:
    waits = sum(step.seconds["wait"] for step in steps.steps)
    number = len(steps.steps)
    usual_s = max(0.0, waits - sum(inside)) / max(1, number - len(inside))
    return usual_s * max(0.0, 1 - 1 / length) + start_s / length - waits / max(1, number)
