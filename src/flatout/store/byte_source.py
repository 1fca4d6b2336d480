"""ByteSource: where the bytes of a shard come from: a map of the file, or read calls that a loader brings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from flatout.store.announcing import announce_mapped
from flatout.store.mapping import map_file
from flatout.types import Array


class ByteSource(Protocol):
    """The bytes of one open file."""

    def read(self, offset: int, size: int) -> Array:
        """`size` bytes from `offset` on, as uint8; whoever asks does not write to them."""

    def announce(self, offset: int, size: int) -> None:
        """Ask the system to fetch these bytes, where it can be asked; returns at once."""


OpenBytes = Callable[[Path, int], ByteSource]
"""A file and its size in, its bytes out; raises OSError if it cannot be opened."""


class MappedBytes:
    """A file as memory: nothing is copied, and an I/O error kills the process."""

    def __init__(self, path: Path, size: int) -> None:
        self._bytes = map_file(path, size)

    def read(self, offset: int, size: int) -> Array:
        return self._bytes[offset:][:size]

    def announce(self, offset: int, size: int) -> None:
        announce_mapped(self.read(offset, size))
