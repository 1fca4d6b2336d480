"""Rows by read calls: for network and FUSE mounts and Windows, where an I/O error must be an exception."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path

from flatout.errors import LoaderError
from flatout.loader.mapped import Extent
from flatout.loader.places import Places
from flatout.types import Array

MAX_OPEN = 128
RETRIES = 3


class PreadRows:
    """A fixed-shape field read row by row with pread; an error names shard, byte and the way out."""

    def __init__(self, extents: list[Extent], places: Places, row_bytes: int) -> None:
        self._extents = extents
        self._places = places
        self._row_bytes = row_bytes
        self._files = _ThreadFiles()

    def gather(self, positions: Array, out: Array) -> None:
        shards, rows = self._places.shards[positions].tolist(), self._places.rows[positions].tolist()
        for at, (shard, row) in enumerate(zip(shards, rows, strict=True)):
            extent = self._extents[shard]
            view = out[at : at + 1].data.cast("B")
            self._files.mine.read(extent.path, extent.offset + row * self._row_bytes, view)


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
                    raise LoaderError(
                        f"{path}: {error.strerror or error} at byte {offset:,}, {RETRIES} times. Check the "
                        f"disk or the mount; 'flatout verify {path.parent.parent}' tells what is damaged"
                    ) from error

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


class _ThreadFiles(threading.local):
    """Each producer has descriptors of its own: nobody closes one that another reads."""

    def __init__(self) -> None:
        self.mine = OpenFiles()


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
