"""Shared: what all processes together have written, followed through the log."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from flatout.errors import CacheError, StoreError
from flatout.store.fill.head import Head, settled_head
from flatout.store.fill.known import Known
from flatout.store.fill.log import CacheLog, Entry, Segment

Failed = Sequence[tuple[Segment, StoreError]]


class ClearedError(Exception):
    """Somebody cleared the cache, and there is none for this dataset any more."""


class Shared:
    """One process's knowledge of a cache. The caller sees to it that one thread at a time changes it."""

    def __init__(self, folder: Path, head: Head) -> None:
        self.folder = folder
        self.head = head
        self.known = Known(folder, head.num_items)
        self.log = CacheLog(folder / head.log_name)

    def refresh(self) -> bool:
        """Learn what the log has that is new; whether there was anything.

        Raises:
            ClearedError: the cache is gone.
            CacheError: two processes decoded one item with different results.
        """
        try:
            if not self.log.has_news():
                return False
            self._take(self.log.read_new())
        except FileNotFoundError:
            self.follow()
        return True

    def append(self, entry: Entry) -> None:
        """Tell everybody.

        Raises:
            ClearedError: the cache is gone. OSError: it cannot be written.
        """
        try:
            self.log.append(entry)
        except FileNotFoundError:
            self.follow()
            self.log.append(entry)

    def follow(self) -> None:
        """The log is gone: somebody cleared the cache. Go on in the new one if it is for the same dataset.

        Raises:
            ClearedError: it is not, or there is none.
        """
        try:
            head = settled_head(self.folder)
        except (CacheError, OSError) as error:
            raise ClearedError(str(error)) from error
        if head is None or head.id == self.head.id or not head.is_same(self.head):
            raise ClearedError("the cache was cleared by another program")
        self.head, self.known = head, Known(self.folder, head.num_items)
        self.log = CacheLog(self.folder / head.log_name)
        with suppress(FileNotFoundError):  # cleared once more: the next look will find out
            self._take(self.log.read_new())

    def lose(self, index: int, error: StoreError) -> None:
        """A place that does not hold its item: the log knows why, or the segment is damaged."""
        place = self.known.place_of.item(index)
        if self.refresh() or place < 0:
            return
        segment = self.known.segments[place >> 32]
        if segment is not None:
            self._drop(segment, error)

    def _take(self, entries: Sequence[Entry]) -> None:
        """Learn what the log says; if a root stands for all of it, from the root, which is faster."""
        last = max((at for at, entry in enumerate(entries) if entry.complete), default=-1)
        if last >= 0 and not self.known.is_complete:
            fresh = Known(self.folder, self.head.num_items)
            if fresh.take_root(self.head, entries[last]):
                self.known, entries = fresh, entries[last + 1 :]
        self._apply(entries)

    def _apply(self, entries: Sequence[Entry]) -> None:
        """Follow the log. A segment that a later line drops may be deleted already, so it is not opened."""
        last_drop = {file: at for at, entry in enumerate(entries) for file in entry.drop}
        failed: list[tuple[Segment, StoreError]] = []
        for at, entry in enumerate(entries):
            for file in entry.drop:
                self.known.drop(file)
            for segment in entry.add:
                try:
                    if last_drop.get(segment.meta.file, -1) <= at:
                        self.known.add(segment)
                except StoreError as problem:
                    failed.append((segment, problem))
            if entry.complete and self.known.is_complete:
                self.known.root = entry.complete
        if failed:
            self._apply_after(failed)

    def _apply_after(self, failed: Failed) -> None:
        """Segments that could not be opened are damaged, unless the log has dropped them in the meantime."""
        more = self.log.read_new()
        dropped = {file for entry in more for file in entry.drop}
        for segment, error in failed:
            if segment.meta.file not in dropped:
                self._drop(segment, error)
        self._apply(more)

    def _drop(self, segment: Segment, error: StoreError) -> None:
        """Forget a segment here, and if it is damaged, for everybody."""
        self.known.drop(segment.meta.file)
        if not _is_damage(error):
            return
        with suppress(OSError, ClearedError):  # a read-only cache: then every process finds it anew
            self.append(Entry(drop=(segment.meta.file,)))
        reason = str(error).partition(". ")[0]
        what = f"{reason}. Its {segment.meta.rows} items are decoded again from the dataset"
        warnings.warn(what, RuntimeWarning, stacklevel=2)


def _is_damage(error: StoreError) -> bool:
    """Too many open files, no memory, no permission: nothing that another process would suffer from."""
    cause = error.__cause__
    return not isinstance(cause, OSError) or cause.errno == errno.ENOENT
