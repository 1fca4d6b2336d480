"""Layer: the settings one place gives (a file, the environment, options), and where each was written."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Path = tuple[Hashable, ...]
"""The keys that lead to a setting, from the outermost inwards."""

MISSING = object()
"""Tells an absent setting from one that is null."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Nested settings from one place."""

    origin: str
    """Where they were given, as a message names it: a file, "environment", "--set"."""
    values: dict[Any, Any]
    lines: Mapping[Path, int] = field(default_factory=dict)
    """Line of each key as it was written, where the origin has lines."""
    spelled: Mapping[Path, Path] = field(default_factory=dict)
    """The key as it was written, for each key that was renamed."""

    def describe(self, path: Path) -> str:
        """Where `path` was given: "config.yaml, line 3"; the nearest key around it that has a line."""
        written = self.spelling(path)
        for end in range(len(written), 0, -1):
            if line := self.lines.get(written[:end]):
                return f"{self.origin}, line {line}"
        return self.origin

    def spelling(self, path: Path) -> Path:
        """`path` as it was written before renaming; for a section, as its first key's was."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.spelled:
                return self.spelled[path[:end]] + path[end:]
        for inner, written in self.spelled.items():
            if inner[: len(path)] == path:
                rest = inner[len(path) :]
                return written[: -len(rest)] if written[-len(rest) :] == rest else written
        return path

    def holds(self, path: Path) -> bool:
        """Whether this layer gives `path`."""
        return lookup(self.values, path, MISSING) is not MISSING


def leaves(values: Mapping[Any, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every setting that is not itself a non-empty mapping, with its path, in order."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def lookup(values: Mapping[Any, Any], path: Path, default: Any = None) -> Any:
    """The value at `path`, through mappings and lists; `default` where there is none."""
    here: Any = values
    for key in path:
        is_inside = (
            key in here if isinstance(here, Mapping) else isinstance(here, list) and key in range(len(here))
        )
        if not is_inside:
            return default
        here = here[key]
    return here


def put(values: dict[Any, Any], path: Path, value: Any) -> None:
    """Set `path` in nested `values`; what stands in the way and is no mapping is replaced."""
    for key in path[:-1]:
        inner = values.get(key)
        if not isinstance(inner, dict):
            inner = values[key] = {}
        values = inner
    values[path[-1]] = value


def dotted(path: Path) -> str:
    """A path as messages and `--set` write it: cache_config.cache_size."""
    return ".".join(str(key) for key in path)


def word(value: Any) -> str:
    """A value as a file would write it, cut to a readable length."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
