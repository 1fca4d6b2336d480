"""Known: which items a cache holds and where each of them stands, as one process knows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flatout.errors import CacheError, StoreError
from flatout.store.fill.head import Head
from flatout.store.fill.log import Entry, Segment
from flatout.store.fill.opened import OpenSegment
from flatout.store.reader import StoreReader
from flatout.types import Array

MAX_OPEN = 256
"""Segments kept mapped: each holds a file descriptor, and a process often has 1,024."""


ROW = (1 << 32) - 1
"""The part of a place that is the row."""


class Known:
    """Places of items. Reading needs no lock: a stale place is at worst a miss."""

    def __init__(self, folder: Path, num_items: int) -> None:
        self.folder = folder
        self.segments: list[Segment | None] = []
        self.place_of = np.full(num_items, -1, np.int64)
        """Segment << 32 | row of each item, -1 where there is none: one number, so that no thread sees half."""
        self.is_checked = np.zeros(num_items, bool)
        """Items whose bytes this process has compared with their crc."""
        self.num_known = 0
        self.root = ""
        """Content hash of the root that stands for all items; empty while there is none."""
        self.changes = 0
        """Counts what happened to the segments, for those who plan by them."""
        self.gone: set[str] = set()
        """Files that were dropped while this process looked; whoever commits a root deletes them."""
        self._files: dict[str, int] = {}
        self._open: dict[int, OpenSegment] = {}

    @property
    def is_complete(self) -> bool:
        return self.num_known == len(self.place_of)

    def live(self) -> dict[int, Segment]:
        """Segments that count, by their number here."""
        return {number: segment for number, segment in enumerate(self.segments) if segment is not None}

    def take_root(self, head: Head, entry: Entry) -> bool:
        """Take all places from the committed root: it opens faster than the segments. False: it is gone."""
        try:
            store = StoreReader(self.folder)
            same_code = store.meta.fingerprint.get("digest") == head.fingerprint.digest
            if not same_code or store.meta.content_hash != entry.complete or len(store) != head.num_items:
                return False
            shards, rows = store.numbers["shard"], store.numbers["row"]
        except StoreError:
            return False
        self.segments = [Segment(meta, store.meta.fields, entry.form) for meta in store.meta.shards]
        self.place_of = shards.astype(np.int64) << 32 | rows
        self._files = {meta.file: number for number, meta in enumerate(store.meta.shards)}
        self._note(head.num_items)
        self.root = entry.complete
        return True

    def open(self, number: int) -> OpenSegment:
        """A segment, mapped when first used; the one opened first makes room.

        Raises:
            StoreError: it is missing or damaged.
        """
        found = self._open.get(number)
        if found is None:
            segment = self.segments[number]
            if segment is None:
                raise StoreError(f"segment {number} of {self.folder} is gone")
            found = OpenSegment(self.folder, segment)
            surplus = list(self._open)[: max(0, len(self._open) - MAX_OPEN + 1)]  # a copy: threads share it
            for oldest in surplus:
                self._open.pop(oldest, None)
            self._open[number] = found
        return found

    def read(self, index: int) -> tuple[str, list[Array]]:
        """Form and arrays of an item that has a place.

        Raises:
            StoreError: its segment is missing or damaged.
        """
        place = self.place_of.item(index)
        if place < 0:
            raise StoreError(f"{self.folder} does not hold item {index}")
        opened = self.open(place >> 32)
        if self.is_checked[index]:
            return opened.segment.form, opened.read(place & ROW)
        arrays = opened.read_checked(place & ROW, index)
        self.is_checked[index] = True
        return opened.segment.form, arrays

    def check(self, index: int) -> None:
        """Compare an item's bytes with their crc, unless this process has.

        Raises:
            StoreError: they differ, or the segment is missing.
        """
        if not self.is_checked[index]:
            self.read(index)

    def indices_in(self, numbers: Sequence[int]) -> Array:
        """The items that stand in these segments, segment by segment."""
        held = np.flatnonzero(np.isin(self.place_of >> 32, numbers))
        return held[np.argsort(self.place_of[held], kind="stable")]

    def add(self, segment: Segment) -> None:
        """Learn of a segment; of an item that stands in two, the first counts.

        Raises:
            StoreError: it is missing or damaged. CacheError: it holds other content for a known item.
        """
        if segment.meta.file in self._files:
            return
        number = len(self.segments)
        self.segments.append(segment)
        try:
            opened = self.open(number)
            indices = opened.indices()
            if len(indices) and not 0 <= indices.min() <= indices.max() < len(self.place_of):
                raise opened.reader.damaged("it holds items that the dataset does not have")
        except StoreError:
            self.segments[number] = None
            raise
        is_new = self.place_of[indices] < 0
        self._compare(opened, number, np.flatnonzero(~is_new), indices)
        self.place_of[indices[is_new]] = number << 32 | np.flatnonzero(is_new)
        self._files[segment.meta.file] = number
        self.gone.discard(segment.meta.file)
        self._note(int(is_new.sum()))

    def drop(self, file: str) -> None:
        """Forget a segment; its items are no longer here."""
        self.gone.add(file)
        number = self._files.pop(file, None)
        if number is None:
            return
        gone = self.place_of >> 32 == number
        self.segments[number] = None
        self.place_of[gone] = -1
        self.is_checked[gone] = False
        self._open.pop(number, None)
        self._note(-int(gone.sum()))

    def _note(self, num_more: int) -> None:
        """A root stands for all items as long as none comes or goes."""
        self.num_known += num_more
        self.changes += 1
        if num_more:
            self.root = ""

    def _compare(self, opened: OpenSegment, number: int, rows: Array, indices: Array) -> None:
        """Items that were stored twice must be equal: else the dataset gives another item each time."""
        for row in rows.tolist():
            index = int(indices[row])
            if not self.is_same(index, opened.segment.form, int(opened.digests()[row])):
                self.segments[number] = None
                raise differs(self.folder, index)

    def is_same(self, index: int, form: str, digest: int) -> bool:
        """Whether an item that is here has this form and content; damage is left to whoever reads it."""
        place = self.place_of.item(index)
        try:
            first = self.open(place >> 32)
            return first.segment.form == form and int(first.digests()[place & ROW]) == digest
        except StoreError:
            return True


def differs(folder: Path, index: int) -> CacheError:
    """The error for a dataset that gave two different items for one number."""
    return CacheError(
        f"item {index} was decoded twice with different results: the dataset is not deterministic, and "
        f"{folder} cannot hold its items. Make it give the same item each time (random augmentation "
        "belongs into transform=), then use clear=True or a new directory"
    )
