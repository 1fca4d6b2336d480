"""Findings: what loading a config has to say: notes for the user, and everything that is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

from flatout.errors import ConfigError


@dataclass(slots=True)
class Findings:
    """Collected along the way, so that one run shows every mistake of a file."""

    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def raise_problems(self) -> None:
        """Raise one ConfigError that lists every problem; nothing if there is none."""
        if len(self.problems) == 1:
            raise ConfigError(self.problems[0])
        if self.problems:
            lines = "".join(f"\n  {problem}" for problem in self.problems)
            raise ConfigError(f"{len(self.problems)} settings are wrong:{lines}")
