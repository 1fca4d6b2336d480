"""Settings side by side: nested values flattened to dotted names, and where two of them differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flatout.report.text import VALUE_LENGTH, clipped

UNSET = "not set"
MOST_DEPTH = 8
"""Sections inside sections that get a name; what is deeper is one value."""


@dataclass(frozen=True)
class Difference:
    """One setting and its two values."""

    name: str
    first: Any
    second: Any
    """UNSET where one side does not have it."""


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Where two configs differ, by dotted name, in the order of the first."""
    one, other = dict(flattened(first)), dict(flattened(second))
    names = [*one, *(name for name in other if name not in one)]
    found = [Difference(name, one.get(name, UNSET), other.get(name, UNSET)) for name in names]
    return [each for each in found if not _is_same(each.first, each.second)]


def flattened(
    settings: Mapping[str, Any], before: str = "", depth: int = MOST_DEPTH
) -> Iterator[tuple[str, Any]]:
    """{"a": {"b": 1}} -> ("a.b", 1); empty sections are values."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value and depth:
            yield from flattened(value, f"{before}{name}.", depth - 1)
        else:
            yield f"{before}{name}", value


def value_text(value: Any) -> str:
    """A setting as JSON writes it; text as it is."""
    if isinstance(value, str):
        return clipped(value, VALUE_LENGTH)
    try:
        return clipped(json.dumps(value, ensure_ascii=False, default=str), VALUE_LENGTH)
    except RecursionError:
        return "(nested too deep to be shown)"


def _is_same(first: Any, second: Any) -> bool:
    """1 and 1.0 are the same setting, 1 and true are not."""
    return bool(first == second) and isinstance(first, bool) == isinstance(second, bool)
