"""Bytes by read calls: where an I/O error must be an exception, and for more than the memory holds."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flatout.errors import LoaderError
from flatout.loader.mapped import Extent
from flatout.loader.places import Places
from flatout.loader.rows import FixedRows
from flatout.store.announcing import announce_bytes
from flatout.types import Array

MAX_OPEN = 128
RETRIES = 3


class Files(threading.local):
    """Open files. Each thread has descriptors of its own: nobody closes one that another reads."""

    def __init__(self) -> None:
        self._mine = OpenFiles()

    def open(self, path: Path, size: int) -> FileBytes:
        """A shard's bytes, read when they are asked for; its size has been compared."""
        return FileBytes(self, path)

    def read(self, path: Path, offset: int, view: memoryview) -> None:
        """Fill `view` from the file, as `OpenFiles.read`."""
        self._mine.read(path, offset, view)

    def announce(self, path: Path, offset: int, size: int) -> None:
        """Ask the system to fetch these bytes; returns at once."""
        self._mine.announce(path, offset, size)


@dataclass(frozen=True)
class FileBytes:
    """The bytes of one file, by read calls."""

    files: Files
    path: Path

    def read(self, offset: int, size: int) -> Array:
        """`size` bytes from `offset` on; an array of the caller's own."""
        buffer = np.empty(size, np.uint8)
        self.files.read(self.path, offset, buffer.data)
        return buffer

    def announce(self, offset: int, size: int) -> None:
        """Ask the system to fetch these bytes; returns at once."""
        self.files.announce(self.path, offset, size)


@dataclass(frozen=True)
class PreadRows(FixedRows):
    """A fixed-shape field read row by row with pread; an error names shard, byte and the way out."""

    extents: list[Extent]
    places: Places
    row_bytes: int
    files: Files

    def gather(self, found: Array, out: Array) -> None:
        shards, rows = self.places.shards[found].tolist(), self.places.rows[found].tolist()
        for at, (shard, row) in enumerate(zip(shards, rows, strict=True)):
            extent = self.extents[shard]
            view = out[at : at + 1].data.cast("B")
            self.files.read(extent.path, extent.offset + row * self.row_bytes, view)

    def announce(self, found: Array) -> None:
        shards, rows = self.places.shards[found].tolist(), self.places.rows[found].tolist()
        for shard, row in zip(shards, rows, strict=True):
            extent = self.extents[shard]
            self.files.announce(extent.path, extent.offset + row * self.row_bytes, self.row_bytes)


class OpenFiles:
    """Open descriptors of one thread of one process, the least recently used closed first."""

    def __init__(self) -> None:
        self._files: OrderedDict[Path, int] = OrderedDict()
        self._pid = os.getpid()

    def read(self, path: Path, offset: int, view: memoryview) -> None:
        """Fill `view` from the file; retried with a fresh descriptor, as a remote file may have gone stale.

        Raises:
            LoaderError: it cannot be read, or ends early.
        """
        for attempt in range(RETRIES):
            try:
                _read_all(self._open(path), offset, view)
                return
            except OSError as error:
                self._forget(path)
                if attempt == RETRIES - 1:
                    raise unreadable(path, f"byte {offset:,}, {RETRIES} times", error) from error

    def announce(self, path: Path, offset: int, size: int) -> None:
        """Ask the system to fetch these bytes, where it can be asked; what cannot be read is told by `read`."""
        if hasattr(os, "posix_fadvise"):  # else no file is opened for it
            with suppress(OSError):
                announce_bytes(self._open(path), offset, offset + size)

    def _open(self, path: Path) -> int:
        if os.getpid() != self._pid:  # a forked child opens its own
            self._files, self._pid = OrderedDict(), os.getpid()
        if path in self._files:
            self._files.move_to_end(path)
            return self._files[path]
        while len(self._files) >= MAX_OPEN:
            os.close(self._files.popitem(last=False)[1])
        self._files[path] = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        return self._files[path]

    def _forget(self, path: Path) -> None:
        descriptor = self._files.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        if os.getpid() == self._pid:
            for descriptor in self._files.values():
                os.close(descriptor)


def unreadable(path: Path, where: str, error: OSError) -> LoaderError:
    """What to raise for a shard that the system cannot read."""
    return LoaderError(
        f"shard {path} cannot be read at {where}: {error.strerror or error}. Check the disk or the mount; "
        f"'flatout verify {path.parent.parent} --repair' rebuilds what is damaged"
    )


def _read_all(descriptor: int, offset: int, view: memoryview) -> None:
    done = 0
    while done < len(view):
        count = _read_some(descriptor, offset + done, view[done:])
        if count == 0:
            raise OSError(None, f"the file ends early, {done:,} of {len(view):,} bytes were read")
        done += count


def _read_some(descriptor: int, offset: int, view: memoryview) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [view], offset)
    os.lseek(descriptor, offset, os.SEEK_SET)  # Windows
    data = os.read(descriptor, len(view))
    view[: len(data)] = data
    return len(data)
