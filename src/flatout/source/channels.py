"""Which list columns are the channels of one sequence: those whose lists are equally long, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Lengths = Sequence[int | None]
"""Those of a column's first lists; None for a missing one."""


def equally_long(lengths: Mapping[str, Lengths]) -> list[list[str]]:
    """The columns in groups whose lists are equally long in each row, all in the order given."""
    alike: dict[tuple[int | None, ...], list[str]] = {}
    for name, found in lengths.items():
        alike.setdefault(tuple(found), []).append(name)
    groups: list[list[tuple[int | None, ...]]] = []
    for found in alike:
        group = next((group for group in groups if all(_agree(found, other) for other in group)), None)
        if group is None:
            groups.append([found])
        else:
            group.append(found)
    order = list(lengths)
    return [sorted((name for found in group for name in alike[found]), key=order.index) for group in groups]


def _agree(one: Lengths, other: Lengths) -> bool:
    """Whether most rows have lists of one length; where one is missing or empty a row tells nothing."""
    pairs = list(zip(one, other, strict=True))
    differ = any(a and b and a != b for a, b in pairs)
    return not differ and sum(a == b for a, b in pairs) * 2 > len(pairs)
