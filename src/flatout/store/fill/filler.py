"""Filler: the cache as one process uses it: items in, items out, shared with all others through the log.

Every process writes segments of its own and learns of those of others by the log's growth. Nothing here waits
for another process, and a process that is killed takes only its pending items with it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flatout.errors import StoreError, StoreLockedError
from flatout.store.fill.finish import finish
from flatout.store.fill.head import Head
from flatout.store.fill.item import Item
from flatout.store.fill.known import Known, differs
from flatout.store.fill.leaving import Leaving
from flatout.store.fill.log import Entry
from flatout.store.fill.pending import Pending
from flatout.store.fill.shared import ClearedError, Shared
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
        self.is_on = True
        """False once writing failed: then items are only read."""
        self._shared = Shared(folder, head)
        self._shard_bytes = shard_bytes
        self._pending = Pending()
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._leaving: Leaving | None = None
        self.refresh()

    @property
    def head(self) -> Head:
        return self._shared.head

    @property
    def known(self) -> Known:
        """Where the items stand; another object when the cache was cleared and begun anew."""
        return self._shared.known

    def read(self, index: int) -> Found | None:
        """The item, if this cache has it; None: it must be decoded. Damage counts as not having it."""
        if time.monotonic() > self._pending.due_s:
            self.flush()
        for _ in range(2):
            known = self.known
            if known.place_of.item(index) < 0:
                break
            try:
                return known.read(index)
            except StoreError as error:
                with self._mine():
                    self._shared.lose(index, error)
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
            self._leaving = self._leaving or Leaving(self.close)
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
            return self.is_on and self._shared.refresh()

    def complete(self) -> None:
        """Commit the root if every item is here and no root stands for them yet."""
        with self._mine():
            if not self.is_on or not self._is_ready():
                return
            try:
                with locked(self.folder):
                    self.refresh()
                    if self._is_ready():
                        finish(self.folder, self.head, self.known, self._shared.log)
                self.refresh()
            except StoreLockedError:
                logger.debug("%s is being committed by another process", self.folder)
            except (OSError, StoreError) as error:
                logger.warning("%s is filled, but no store could be made of it: %s", self.folder, error)

    def close(self) -> None:
        """Write what is pending. An item may still be added; at the end of the process this comes by itself."""
        if self._pid == os.getpid() and len(self._pending):
            self.flush()

    def close_with(self, owner: object) -> None:
        """Close when this object is gone."""
        weakref.finalize(owner, self._leave).atexit = False

    @contextmanager
    def _mine(self) -> Iterator[None]:
        """The lock, after a look at whose process this is: a fork copies a lock that nobody will release."""
        if self._pid != os.getpid():
            self._pid, self._lock = os.getpid(), threading.RLock()
            self._pending, self._leaving = Pending(), None
        with self._lock:
            try:
                yield
            except ClearedError as error:
                self._stop(str(error))

    def _leave(self) -> None:
        self.close()
        if self._pid == os.getpid() and self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def _is_ready(self) -> bool:
        return self.known.is_complete and not self.known.root and self.head.num_items > 0

    def _write(self) -> None:
        """Pending items become segments, but for those that another process has written in the meantime."""
        for index in self._pending.indices():
            if self.known.place_of.item(index) >= 0:
                if not self.known.is_same(index, *self._pending.digest(index)):
                    self._pending.clear()
                    raise differs(self.folder, index)
                self._pending.forget(index)
        try:
            for segment in self._pending.write(self.folder, self._shared.log.num_lines):
                self._shared.append(Entry(add=(segment,)))
            self._pending.clear()
            self.refresh()
        except (OSError, StoreError) as error:
            self._stop(str(error))

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
