"""Another epoch: a dataset is told that it is in one, and put back as it was.

Augmentation that is drawn from (seed, epoch, index) is the same twice in a row, and no known generator is drawn
from: only another epoch shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from flatout.loader.insides import insides

STEPS = (1, 1000)
"""Epochs further on: the next one, and one behind any warm-up or schedule."""
NAMES = ("epoch", "_epoch", "current_epoch", "_current_epoch")
"""Attributes in which a dataset says where it is."""
ABSENT = object()


class Epochs:
    """The epoch of a dataset and of whatever it consists of: wrapped datasets, transforms."""

    def __init__(self, dataset: object) -> None:
        self._holders = [part for _, part in insides(dataset) if _has_attributes(part)]
        self._parts = [part for part in self._holders if _takes_epoch(part) or _has_epoch(part)]

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._parts)

    @contextmanager
    def moved_on(self, step: int) -> Iterator[None]:
        """So many epochs further on inside; as it was behind it."""
        here = [_epoch_of(part) for part in self._parts]
        before = self._attributes()
        self._tell([epoch + step for epoch in here])
        changed = self._changes(before)
        try:
            yield
        finally:
            read = self._attributes()
            self._tell(here)  # for what it keeps elsewhere: in a tensor, in memory that processes share
            for at, name in changed | self._changes(read):
                if name in before[at]:
                    vars(self._holders[at])[name] = before[at][name]
                else:
                    vars(self._holders[at]).pop(name, None)

    def _attributes(self) -> list[dict[str, Any]]:
        return [dict(vars(holder)) for holder in self._holders]

    def _changes(self, before: Sequence[Mapping[str, Any]]) -> set[tuple[int, str]]:
        """Numbers of the holders, and names of their attributes that are others now."""
        pairs = enumerate(zip(self._holders, before, strict=True))
        return {
            (at, name)
            for at, (holder, was) in pairs
            for name in {*vars(holder), *was}
            if vars(holder).get(name, ABSENT) is not was.get(name, ABSENT)
        }

    def _tell(self, epochs: Sequence[int]) -> None:
        for part, epoch in zip(self._parts, epochs, strict=True):
            if _takes_epoch(part):
                with suppress(Exception):  # one that it does not take shows nothing
                    part.set_epoch(epoch)
            else:
                vars(part)["epoch"] = epoch


def _has_attributes(part: Any) -> bool:
    return isinstance(getattr(part, "__dict__", None), dict)  # a class has a view of one


def _takes_epoch(part: Any) -> bool:
    # Not by getattr of the part itself: a wrapper that passes everything on is no dataset with an epoch.
    return callable(getattr(type(part), "set_epoch", None)) or callable(vars(part).get("set_epoch"))


def _has_epoch(part: Any) -> bool:
    return type(vars(part).get("epoch")) is int


def _epoch_of(part: Any) -> int:
    """Where a part says that it is; a number, a tensor or a value shared by processes. 0 if it does not."""
    for name in NAMES:
        value = vars(part).get(name)
        with suppress(TypeError, ValueError):
            return int(getattr(value, "value", value))
    return 0
