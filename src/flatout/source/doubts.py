"""Classes that may be typos: a name of one or two rows that is nearly that of a frequent class."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import pyarrow as pa

from flatout.config.fields import AnyField, LabelField
from flatout.source.judge import MOST_CLASSES
from flatout.source.manifest import Manifest

RARE_ROWS = 2
"""A class of more rows than this is no slip."""
TIMES_AS_MANY = 5
"""Rows that the other class must have for each of the rare one's."""
MAX_RARE = 100
"""So many rare classes are what the data is like."""
MAX_TOLD = 5

_NUMBER = re.compile(r"\d+")


def doubtful_classes(fields: Mapping[str, AnyField], manifest: Manifest) -> list[str]:
    """A sentence on each label field with classes that look misspelt; none where `classes` are given."""
    notes = []
    for name, field in fields.items():
        column = field.column or name
        if isinstance(field, LabelField) and field.classes is None and column in manifest.table.column_names:
            found = likely_typos(_counts(manifest.table[column]))
            notes += [_told(name, found)] if found else []
    return notes


def likely_typos(counts: Mapping[str, int]) -> list[tuple[str, int, str, int]]:
    """(name, rows, name of the class that was likely meant, its rows) of each class that looks misspelt."""
    rare = sorted(name for name, num in counts.items() if num <= RARE_ROWS)
    if len(rare) > MAX_RARE:
        return []
    found = []
    for name in rare:
        others = [o for o, num in counts.items() if num >= TIMES_AS_MANY * counts[name] and _alike(name, o)]
        if others:
            other = max(others, key=lambda o: (counts[o], o))
            found.append((name, counts[name], other, counts[other]))
    return found


def _counts(column: pa.ChunkedArray) -> dict[str, int]:
    """Rows of each name in a column of texts; none of numbers, nor of so many names that a slip is no news."""
    if not (pa.types.is_large_string(column.type) or pa.types.is_string(column.type)):
        return {}
    found = column.value_counts()
    if len(found) > MOST_CLASSES:
        return {}
    counts: Counter[str] = Counter()
    for pair in found.to_pylist():
        counts[str(pair["values"] or "").strip()] += pair["counts"]
    del counts[""]
    return dict(counts)


def _told(field: str, found: list[tuple[str, int, str, int]]) -> str:
    told = [f"'{name}' ({_rows(num)}) may be '{o}' ({_rows(of)})" for name, num, o, of in found[:MAX_TOLD]]
    more = f" and {len(found) - MAX_TOLD:,} more" if len(found) > MAX_TOLD else ""
    return (
        f"field '{field}': classes that look misspelt: {', '.join(told)}{more}; each is a class of its own "
        f"unless you mend it, or list the right ones in fields.{field}.classes"
    )


def _rows(num: int) -> str:
    return "1 row" if num == 1 else f"{num:,} rows"


def _alike(name: str, other: str) -> bool:
    """Whether one is likely the other with a slip of the hand; not where names are short or numbers differ."""
    a, b = name.casefold(), other.casefold()
    shorter = min(len(a), len(b))
    most = 0 if shorter < 4 else 1 if shorter < 8 else 2
    if name == other or abs(len(a) - len(b)) > most or _NUMBER.findall(a) != _NUMBER.findall(b):
        return False
    return _distance(a, b) <= most


def _distance(a: str, b: str) -> int:
    """Letters to add, leave out, replace or swap with their neighbour to get from one to the other."""
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        row = [i]
        for j, wanted in enumerate(b, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == wanted:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]
