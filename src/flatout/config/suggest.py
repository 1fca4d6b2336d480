"""The known key or name nearest to an unknown one: misspelt, in the wrong section, or another spelling."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

from flatout.config.dialect import FLATTENED, RENAMED
from flatout.config.keys import list_keys
from flatout.config.layer import Path, dotted
from flatout.config.schema import Config

ALIKE = 0.7
"""How alike two names must be, from 0 to 1, to be taken for one another."""
SIBLING = 0.05
"""What standing in the same section adds to that."""


def nearest_key(path: Path) -> str | None:
    """The dotted name of the known key that `path` most likely means, or None; never `path` itself."""
    parent, matcher = _pattern(path[:-1]), SequenceMatcher(b=_plain(path[-1]))
    best, shown = ALIKE, None
    for candidate, canonical in _known().items():
        if len(path) > 1 and path[0] == "fields" != candidate[0]:  # what a field lacks, another section has not
            continue
        matcher.set_seq1(_plain(candidate[-1]))
        likeness = matcher.ratio() + (SIBLING if candidate[:-1] == parent else 0.0)
        if likeness > best and _fill(canonical, path) != dotted(path):
            best, shown = likeness, canonical
    return _fill(shown, path) if shown else None


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """That of `names` which `name` most likely means, or None."""
    matcher = SequenceMatcher(b=_plain(name))
    best, nearest = ALIKE, None
    for other in names:
        matcher.set_seq1(_plain(other))
        if matcher.ratio() > best:
            best, nearest = matcher.ratio(), other
    return nearest


def _known() -> dict[tuple[str, ...], tuple[str, ...]]:
    """Every key, canonical or not, and the canonical one to show for it."""
    known = {key.path: key.path for key in list_keys(Config)}
    known |= {(section,): (section,) for section in FLATTENED}
    return known | {tuple(old.split(".")): tuple(new.split(".")) for old, new in RENAMED.items()}


def _pattern(parent: Path) -> Path:
    """The parent with "*" for the name of a field."""
    return ("fields", "*", *parent[2:]) if len(parent) > 1 and parent[0] == "fields" else parent


def _fill(shown: tuple[str, ...], path: Path) -> str:
    """The suggestion with the user's own field name where both speak of a field."""
    name = path[1] if len(path) > 1 and path[0] == "fields" else "NAME"
    return dotted(tuple(name if part == "*" else part for part in shown))


def _plain(name: object) -> str:
    return str(name).lower().replace("-", "_").replace("_", "")
