"""What a tuning may take and change."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flatout.errors import ConfigError

RESULTS = ("batch_size", "encoding", "order")
"""What changes the results of a training, and is tried only where that is allowed."""
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class TuneOptions:
    """Budgets and permissions of one tuning."""

    budget_s: float = 60.0
    """Seconds for the search, opening the data included."""
    cpu_budget: float = 0.8
    """Share of all cores that workers or producers may keep busy; the training thread's own is not counted."""
    memory_budget: float = 0.8
    """Share of the free memory that a trial may take."""
    allow: frozenset[str] = frozenset()
    """Those of `RESULTS` that may be changed."""

    def __post_init__(self) -> None:
        if unknown := self.allow - set(RESULTS):
            raise ConfigError(f"allow '{min(unknown)}': wanted some of {', '.join(RESULTS)}")
        if not self.budget_s > 0:
            raise ConfigError(f"a budget of {self.budget_s:g} s: more than 0 is needed")
        for name in ("cpu_budget", "memory_budget"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name} {getattr(self, name):g}: wanted a share above 0, up to 1")


def parse_seconds(text: str) -> float:
    """'90', '90s', '1.5m' or '1min' in, seconds out.

    Raises:
        ConfigError: it is no length of time.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|)\s*", text)
    if match is None:
        raise ConfigError(f"'{text}' is no length of time; wanted one such as 60s, 2m or 1h")
    return float(match[1]) * _UNITS[match[2]]
