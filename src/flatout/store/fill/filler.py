"""Filler: the cache as one process uses it: items in, items out, shared with all others through the log.

Every process writes segments of its own and learns of those of others by the log's growth. Nothing here waits
for another process, and a process that is killed takes only its pending items with it.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.util import Finalize
from pathlib import Path

from flatout.errors import CacheError, StoreError, StoreLockedError
from flatout.store.fill.finish import finish
from flatout.store.fill.head import Head, read_head
from flatout.store.fill.item import Item
from flatout.store.fill.known import Known, differs
from flatout.store.fill.log import CacheLog, Entry, Segment
from flatout.store.fill.pending import Pending
from flatout.store.lock import locked
from flatout.types import Array

logger = logging.getLogger("flatout.cache")

SHARD_BYTES = 32 << 20
"""A segment is written at this size: each process holds that much in memory while it fills."""

Found = tuple[str, list[Array]]
"""An item's form and its arrays, the caller's own."""


class Filler:
    """Reads and fills one cache. Threads may share it; after a fork the child begins with nothing pending."""

    def __init__(self, folder: Path, head: Head, shard_bytes: int = SHARD_BYTES) -> None:
        self.folder = folder
        self.head = head
        self.known = Known(folder, head.num_items)
        self.is_on = True
        """False once writing failed: then items are only read."""
        self._shard_bytes = shard_bytes
        self._log = CacheLog(folder / head.log_name)
        self._pending = Pending()
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._exit: Finalize | None = None
        with self._mine():
            self._load()

    def read(self, index: int) -> Found | None:
        """The item, if this cache has it; None: it must be decoded. Damage counts as not having it."""
        if time.monotonic() > self._pending.due_s:
            self.flush()
        for _ in range(2):
            if self.known.place_of.item(index) < 0:
                break
            try:
                return self.known.read(index)
            except StoreError as error:
                self._lost(index, error)
        with self._mine():
            found = self._pending.read(index)
            if found is None and self.refresh() and self.known.place_of.item(index) >= 0:
                with suppress(StoreError):
                    found = self.known.read(index)
            return found

    def add(self, index: int, item: Item) -> None:
        """Keep an item that was decoded. It is on disk when its segment is full, due, or the process ends."""
        with self._mine():
            if not self.is_on or index in self._pending:
                return
            if self._exit is None:
                self._close_at_exit()
            self._pending.put(index, item)
            is_all = self.known.num_known + len(self._pending) >= self.head.num_items
            if is_all or self._pending.num_bytes >= self._shard_bytes:
                self.flush()

    def flush(self) -> None:
        """Write what is pending, learn what others wrote, and commit the store if nothing is missing."""
        with self._mine():
            self.refresh()
            if len(self._pending):
                self._write()
            self.complete()

    def refresh(self) -> bool:
        """Learn what others wrote; whether there was anything.

        Raises:
            CacheError: two processes decoded one item with different results.
        """
        with self._mine():
            try:
                if not self._log.has_news():
                    return False
                self._apply(self._log.read_new())
            except FileNotFoundError:
                return self._follow()
            return True

    def complete(self) -> None:
        """Commit the root if every item is here and no root stands for them yet."""
        with self._mine():
            if not self.known.is_complete or self.known.root or not self.head.num_items or not self.is_on:
                return
            try:
                with locked(self.folder):
                    self.refresh()
                    if self.known.is_complete and not self.known.root:
                        finish(self.folder, self.head, self.known, self._log)
                self.refresh()
            except StoreLockedError:
                logger.debug("%s is being committed by another process", self.folder)
            except (OSError, StoreError) as error:
                logger.warning("%s is filled, but no store could be made of it: %s", self.folder, error)

    def close(self) -> None:
        """Write what is pending. An item may still be added; at the end of the process this comes by itself."""
        if self._pid == os.getpid() and len(self._pending):
            self.flush()

    def forget_exit(self) -> None:
        """Close, and take the handlers back that would do it at the end of the process."""
        self.close()
        if self._pid == os.getpid() and self._exit is not None:
            atexit.unregister(self.close)
            self._exit.cancel()
            self._exit = None

    def close_with(self, owner: object) -> None:
        """Close when this object is gone."""
        weakref.finalize(owner, self.forget_exit).atexit = False

    @contextmanager
    def _mine(self) -> Iterator[None]:
        """The lock, after a look at whose process this is: a fork copies a lock that nobody will release."""
        if self._pid != os.getpid():
            self._pid, self._lock = os.getpid(), threading.RLock()
            self._pending, self._exit = Pending(), None
        with self._lock:
            yield

    def _close_at_exit(self) -> None:
        # Workers of a DataLoader run no atexit handlers but multiprocessing's own; the main process runs the
        # last registered first, so that h5py is still whole.
        atexit.register(self.close)
        self._exit = Finalize(None, self.close, exitpriority=100)

    def _load(self) -> None:
        try:
            entries = self._log.read_new()
        except FileNotFoundError:
            self._follow()
            return
        last = max((at for at, entry in enumerate(entries) if entry.complete), default=-1)
        if last >= 0 and self.known.take_root(self.head, entries[last]):
            entries = entries[last + 1 :]
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

    def _apply_after(self, failed: Sequence[tuple[Segment, StoreError]]) -> None:
        """Segments that could not be opened are damaged, unless the log has dropped them in the meantime."""
        more = self._log.read_new()
        dropped = {file for entry in more for file in entry.drop}
        for segment, error in failed:
            if segment.meta.file not in dropped:
                self._drop(segment, error)
        self._apply(more)

    def _lost(self, index: int, error: StoreError) -> None:
        """A place that does not hold its item: the log knows why, or the segment is damaged."""
        with self._mine():
            place = self.known.place_of.item(index)
            if self.refresh() or place < 0:
                return
            segment = self.known.segments[place >> 32]
            if segment is not None:
                self._drop(segment, error)

    def _drop(self, segment: Segment, error: StoreError) -> None:
        """Forget a damaged segment here and for everybody."""
        self.known.drop(segment.meta.file)
        with suppress(OSError):  # a read-only cache: then every process finds it anew
            self._log.append(Entry(drop=(segment.meta.file,)))
        reason = str(error).partition(". ")[0]
        warnings.warn(
            f"{reason}. Its {segment.meta.rows} items are decoded again from the dataset",
            RuntimeWarning,
            stacklevel=2,
        )

    def _write(self) -> None:
        """Pending items become segments, but for those that another process has written in the meantime."""
        try:
            self._forget_known()
            for segment in self._pending.write(self.folder, self._log.num_lines):
                self._log.append(Entry(add=(segment,)))
            self._pending.clear()
            self.refresh()
        except FileNotFoundError as error:
            if self._follow():
                self._write()
            else:
                self._stop(str(error))
        except (OSError, StoreError) as error:
            self._stop(str(error))

    def _forget_known(self) -> None:
        for index in self._pending.indices():
            if self.known.place_of.item(index) < 0:
                continue
            if not self.known.is_same(index, *self._pending.digest(index)):
                self._pending.clear()
                raise differs(self.folder, index)
            self._pending.forget(index)

    def _follow(self) -> bool:
        """The log is gone: somebody cleared the cache. Go on in the new one if it is for the same dataset."""
        try:
            head = read_head(self.folder)
        except CacheError:
            head = None
        if head is None or head.id == self.head.id or not head.is_same(self.head):
            self._stop("the cache was cleared by another program")
            return False
        self.head, self.known = head, Known(self.folder, head.num_items)
        self._log = CacheLog(self.folder / head.log_name)
        self._load()
        return True

    def _stop(self, reason: str) -> None:
        """Go on without writing: a full disk is no reason to end a training."""
        self._pending.clear()
        if self.is_on:
            self.is_on = False
            warnings.warn(
                f"{self.folder}: nothing more is cached by this process, items are decoded each time: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
