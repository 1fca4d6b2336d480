"""What a search leaves behind: its races one by one, and what they have come to."""

from __future__ import annotations

from dataclasses import dataclass, field

from flatout.doctor.tune.interval import Interval
from flatout.doctor.tune.race import Entry
from flatout.doctor.tune.setting import Setting


@dataclass
class Stage:
    """One race: what was changed, what was measured, what was taken and why."""

    name: str
    entries: list[Entry] = field(default_factory=list)
    taken: Setting | None = None
    reason: str = ""


@dataclass
class Found:
    """What a search has come to."""

    setting: Setting
    stages: list[Stage]
    gain: Interval | None
    """How many times as fast as at the start; None: they were not compared."""
    is_complete: bool
    keeps_workers: bool = False
    """Starting worker processes anew took too much of an epoch."""
    skipped: dict[str, str] = field(default_factory=dict)
    """What was left alone on the way, and why."""
