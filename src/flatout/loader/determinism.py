"""Determinism: a dataset whose items differ from one reading to the next must not be cached.

Frozen augmentation is worse than a slow loader: the training goes on, and nobody sees that every epoch is the
same. So some items are read twice under different random states, and every draw of random numbers is noticed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import Any

from flatout.errors import CacheError
from flatout.loader.other_epoch import STEPS, Epochs
from flatout.loader.randomness import RandomWatch, random_states_kept, seed_all
from flatout.loader.structure import take_apart
from flatout.store.fill.item import Item
from flatout.types import Array

BUDGET_S = 5.0
"""Reading stops after this time, but not before two items were compared."""
MIN_CHECKED = 2

ADVICE = (
    "A cache would serve one result of it for ever. Hand the random part to cached(..., transform=...), "
    "which runs on each access, and leave it out of the dataset"
)


def check_twice(dataset: Any, num_items: int, num_checked: int) -> None:
    """Read some items twice under different random states, all the first time before any the second.

    Where the dataset knows its epoch, they are read a third time in another one.

    Raises:
        CacheError: one differed, or random numbers were drawn; with item, field and reason.
    """
    watch = RandomWatch(dataset)
    with random_states_kept():
        firsts = dict(_read(dataset, watch, _spread(num_items, num_checked), 1))
        drawn = {index: used for index, (_, used) in firsts.items() if used}
        for index, (first, _) in firsts.items():
            for _, (second, used) in _read(dataset, watch, [index], 2):
                if what := difference(first, second):
                    source = f" It drew from {used}." if used else ""
                    raise CacheError(
                        f"item {index} is not the same each time: {what} when it was read again under another "
                        f"random state.{source} {ADVICE}"
                    )
                if used:  # of a generator that was made by the first reading
                    drawn.setdefault(index, used)
        for index, used in drawn.items():
            raise drew_random(index, used)
        _check_epochs(dataset, watch, {index: first for index, (first, _) in firsts.items()})


def _check_epochs(dataset: Any, watch: RandomWatch, items: dict[int, Item]) -> None:
    """Read items again in another epoch, if the dataset knows epochs.

    Raises:
        CacheError: one differed.
    """
    epochs = Epochs(dataset)
    for (index, item), step in zip(items.items() if epochs else (), cycle(STEPS), strict=False):
        with epochs.moved_on(step):
            others = dict(_read(dataset, watch, [index], 1))
        for other, _ in others.values():
            if what := difference(item, other):
                raise CacheError(
                    f"item {index} is not the same in every epoch: {what} when the dataset was told "
                    f"another one (set_epoch, or its attribute epoch). {ADVICE}"
                )


def check_against(
    dataset: Any,
    cached: Array,
    num_checked: int,
    read: Callable[[int], tuple[str, list[Array]] | None],
) -> None:
    """Compare some cached items with the dataset, and with what it gives in another epoch if it knows epochs.

    Raises:
        CacheError: one differs: the data changed where the fingerprint does not look, or is another in each
            epoch.
    """
    watch = RandomWatch(dataset)
    chosen = [int(cached[at]) for at in _spread(len(cached), num_checked)]
    items: dict[int, Item] = {}
    with random_states_kept():
        for index, (item, used) in _read(dataset, watch, chosen, 3):
            found = read(index)
            if found is None:
                continue
            what = (
                difference(item, Item(item.form, found[1])) if found[0] == item.form.text else "its structure"
            )
            if what:
                raise CacheError(
                    f"item {index} is no longer what the cache holds: {what} differs. The data changed, or the "
                    "dataset in a way its fingerprint does not see: use a new directory, or clear=True"
                )
            if used:
                raise drew_random(index, used)
            items[index] = item
        _check_epochs(dataset, watch, items)


def drew_random(index: int, source: str) -> CacheError:
    """The error for an item that was equal so far, but need not be."""
    return CacheError(
        f"item {index} drew random numbers from {source} while it was read. {ADVICE}; if the numbers do not "
        "alter the item, check=False goes on without looking"
    )


def difference(first: Item, second: Item) -> str:
    """Which field differs, in words; empty if none does. NaNs count as equal: bytes are compared."""
    if first.form != second.form:
        return "its structure or types differed"
    for field, one, other in zip(first.form.fields, first.arrays, second.arrays, strict=True):
        if one.shape != other.shape:
            return f"field '{field.name}' had shape {one.shape}, then {other.shape}"
        if one.tobytes() != other.tobytes():
            return f"field '{field.name}' differed"
    return ""


def _read(
    dataset: Any, watch: RandomWatch, indices: list[int], seed: int
) -> Iterator[tuple[int, tuple[Item, str]]]:
    """Items and what they drew from. One that raises is left to the training, which will meet it, too."""
    started_s = time.monotonic()
    for at, index in enumerate(indices):
        if at >= MIN_CHECKED and time.monotonic() - started_s > BUDGET_S / 2:
            return
        seed_all((seed * 1_000_003 + index) % (1 << 32))
        try:
            item, used = read_watched(watch, partial(dataset.__getitem__, index))
        except Exception:
            continue
        yield index, (take_apart(item, index), used)


def read_watched(watch: RandomWatch, read: Callable[[], Any]) -> tuple[Any, str]:
    """What `read` gives, and the source it drew random numbers from; empty if it did not.

    A first reading may draw to set something up (a model inside the dataset): only a second one in a row is
    held against it.
    """
    for _ in range(2):
        before = watch.look()
        item = read()
        used = watch.used_since(before)
        if not used:
            break
    return item, used


def _spread(count: int, wanted: int) -> list[int]:
    """The first, the last and some between, others each time; not from the user's streams."""
    if count <= wanted:
        return list(range(count))
    between = random.SystemRandom().sample(range(1, count - 1), max(0, wanted - 2))
    return [0, count - 1, *between][:wanted]
