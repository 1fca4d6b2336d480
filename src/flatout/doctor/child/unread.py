"""Unread: larger loaders that a script has made and not read from: what it trains on may be a warm-up."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from flatout.doctor.child.loaders import SeenLoader, length_of

PATIENCE = 3
"""Times the wanted steps that are looked at while a larger loader waits; then those there are have to do."""


class Unread:
    """Looks once through all objects (some 50 ms) for what waits, then only whether it still does."""

    def __init__(self) -> None:
        self._waiting: list[weakref.ref[DataLoader[Any]]] | None = None

    def forget(self) -> None:
        """Another loader is trained on now."""
        self._waiting = None

    def larger(self, primary: SeenLoader, is_read: Callable[[DataLoader[Any]], bool]) -> list[int]:
        """Samples of the loaders that have more than `primary`'s and were never read from."""
        if self._waiting is None:
            self._waiting = _waiting(length_of(primary.loader.dataset))
        alive = [loader for each in self._waiting if (loader := each()) is not None]
        return [length_of(loader.dataset) or 0 for loader in alive if not is_read(loader)]


def _waiting(num_samples: int | None) -> list[weakref.ref[DataLoader[Any]]]:
    if num_samples is None:
        return []
    found = []
    for each in gc.get_objects():
        # Not isinstance, which asks objects of all kinds for their class, and some answer with an import.
        if not issubclass(type(each), DataLoader) or isinstance(each.dataset, IterableDataset):
            continue
        if (length_of(each.dataset) or 0) > num_samples:
            found.append(weakref.ref(each))
    return found
