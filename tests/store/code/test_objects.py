"""Values of every kind count by content, in any order that means the same."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import json
import re
import types
from typing import Any

import numpy as np
import pytest

from flatout.store.code.objects import ObjectWalk


@dataclasses.dataclass
class Record:
    one: int
    two: Any = None


@dataclasses.dataclass(slots=True)
class Slotted:
    one: int
    two: Any = None


class Counter(dict[str, int]):
    step = 1


def hash_of(value: object) -> str:
    return ObjectWalk().hash_value(value)


VALUES = [
    [],
    (),
    {},
    set(),
    [[1], 2],
    [1, [2]],
    [1, 2],
    [2, 1],
    {"a": 1, "b": 2},
    {"a": 2, "b": 1},
    {1, 2},
    frozenset({1, 3}),
    Record(1),
    Record(1, [1]),
    Slotted(1),
    Slotted(2),
    Counter(a=1),
    Counter(a=2),
    collections.OrderedDict(a=1, b=2),
    collections.OrderedDict(b=2, a=1),
    collections.defaultdict(list, a=1),
    collections.defaultdict(int, a=1),
    collections.deque([1, 2]),
    collections.deque([1, 2], maxlen=5),
    re.compile("a"),
    re.compile("a", re.I),
    datetime.datetime(2020, 1, 1),
    decimal.Decimal("1.10"),
    decimal.Decimal("1.1"),
    types.SimpleNamespace(a=1),
    range(3),
    slice(1, 2),
    np.ma.masked_array([1, 2], [True, False]),
    np.ma.masked_array([1, 2], [False, False]),
    np.array([{"a": 1}], object),
    np.random.default_rng(1),
    np.random.default_rng(2),
    int,
    np.float32,
    np.sum,
    np.log,
    json.loads,
    list[int],
]


def test_all_kinds_of_values_differ() -> None:
    hashes = [hash_of(value) for value in VALUES]
    assert len(set(hashes)) == len(VALUES)
    assert hashes == [hash_of(value) for value in VALUES]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (set("abcdef"), set("fedcba")),
        (Record(1, {"x": {2, 1}}), Record(1, {"x": {1, 2}})),
        ([shared := [1], shared], [[1], [1]]),
    ],
)
def test_order_and_sharing_that_mean_nothing_do_not_count(one: object, other: object) -> None:
    assert hash_of(one) == hash_of(other)


def test_circles_end() -> None:
    circle: list[Any] = [1]
    circle.append(circle)
    assert hash_of(circle) == hash_of(circle)


def test_what_cannot_be_taken_apart_is_noted() -> None:
    class Handle:
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise TypeError("cannot be copied")

    walk = ObjectWalk()
    walk.hash_value([Handle(), (i for i in range(3))])
    notes = {f"values inside {name} objects are not compared" for name in ("generator", Handle.__qualname__)}
    assert walk.definitions.notes == notes
