"""Which remedies go together: what two of them set to different values only one of them can have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flatout.doctor.record import Remedy

TOGETHER = "together"
"""Name of the remedy that is several of the others at once."""
OF_WORKERS = {"persistent_workers", "prefetch_factor"}
"""Settings that mean nothing without workers."""


def going_together(remedies: Sequence[Remedy]) -> list[Remedy]:
    """Remedies with trials in, from best to worst out, without those that contradict a better one."""
    chosen: list[Remedy] = []
    for remedy in sorted(remedies, key=_gain, reverse=True):
        if not any(contradict(remedy.settings, better.settings) for better in chosen):
            chosen.append(remedy)
    return chosen


def contradict(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether no loader can have both."""
    if any(one[name] != other[name] for name in one.keys() & other.keys()):
        return True
    pairs = ((one, other), (other, one))
    return any(first.get("num_workers") == 0 and OF_WORKERS & second.keys() for first, second in pairs)


def settings_kept(remedies: Sequence[Remedy]) -> dict[str, Any]:
    """All that trials have shown to be better, and that can be had at once."""
    kept = [remedy for remedy in remedies if remedy.trial is not None and remedy.trial.is_kept]
    chosen = going_together(kept)
    at_once = next((remedy.trial for remedy in remedies if remedy.name == TOGETHER), None)
    if (
        at_once is not None and at_once.low < at_once.high
    ):  # tried: either that is the best, or one of them alone
        chosen = chosen[:1]
    return {name: value for remedy in chosen for name, value in remedy.settings.items()}


def _gain(remedy: Remedy) -> float:
    return remedy.trial.gain if remedy.trial is not None else 1.0
