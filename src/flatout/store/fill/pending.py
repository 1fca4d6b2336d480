"""Pending: the items that one process has decoded and not yet written, and how they become segments."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flatout.store.fill.item import Form, Item, specify
from flatout.store.fill.log import Segment
from flatout.store.metadata import SHARD_FOLDER
from flatout.store.shard_writer import EncodedSample, ShardWriter
from flatout.types import Array

MIN_WAIT_S = 10.0
LOSS_SHARE = 0.02
"""A killed process loses what it decoded in the last 10 s, or 2 % of its time: small shards stay few."""


@dataclass
class Pending:
    """Items by number. Their arrays are private copies: whoever got the item may change it."""

    started_s: float = field(default_factory=time.monotonic)
    num_bytes: int = 0
    due_s: float = float("inf")
    """When what is here should be written, however little it is."""
    _items: dict[int, tuple[Form, EncodedSample]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, index: int) -> bool:
        return index in self._items

    def put(self, index: int, item: Item) -> None:
        """Keep an item; the first one sets when all of them are due."""
        if not self._items:
            now_s = time.monotonic()
            self.due_s = now_s + max(MIN_WAIT_S, LOSS_SHARE * (now_s - self.started_s))
        sample = item.encoded(index)
        self._items[index] = item.form, sample
        self.num_bytes += sample.num_bytes

    def read(self, index: int) -> tuple[str, list[Array]] | None:
        """The form and copies of the arrays of an item that is here."""
        found = self._items.get(index)
        if found is None:
            return None
        form, sample = found
        return form.text, [array.copy() for array in sample.stored.values()]

    def digest(self, index: int) -> tuple[str, int]:
        """Form and identity of the content of an item that is here."""
        form, sample = self._items[index]
        return form.text, sample.digest()

    def forget(self, index: int) -> None:
        self._items.pop(index, None)

    def indices(self) -> list[int]:
        return list(self._items)

    def clear(self) -> None:
        self._items = {}
        self.num_bytes, self.due_s = 0, float("inf")

    def write(self, folder: Path, number: int) -> Iterator[Segment]:
        """One shard for each form among the items; each is durable when it is yielded."""
        by_form: dict[Form, list[EncodedSample]] = {}
        for form, sample in self._items.values():
            by_form.setdefault(form, []).append(sample)
        for at, (form, samples) in enumerate(by_form.items()):
            yield write_segment(folder, number + at, form, samples)


def write_segment(folder: Path, number: int, form: Form, samples: list[EncodedSample]) -> Segment:
    """A shard with these items."""
    fields = specify(form, samples)
    writer = ShardWriter(fields)
    for sample in samples:
        writer.append(sample)
    return Segment(writer.write(folder / SHARD_FOLDER, number), fields, form.text)
