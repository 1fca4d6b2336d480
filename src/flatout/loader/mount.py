"""How a store is read: mapped, if it lies on a local disk and can stay in memory; otherwise by read calls.

An I/O error under a memory map is a signal that kills the process; a read call returns it. And a map of more
than the memory loses its pages while they are looked at: 3 GB in a container of 1 GB, to a sequential
read, are 0.2 mapped and 0.8 by announced calls.
"""

from __future__ import annotations

import faulthandler
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from flatout.loader.machine import describe_machine
from flatout.loader.pread import Files
from flatout.store import StoreReader
from flatout.store.file_system import file_system_of, is_remote


class Opened(NamedTuple):
    """A store whose shards are mapped, or read by calls."""

    store: StoreReader
    files: Files | None
    """What they are read with; None: they are mapped."""


def open_as(store: StoreReader, io: str) -> Opened:
    """The store as `io` says: itself for `mmap`; for `pread` the same version without a single map."""
    if choose_io(io, store.folder, sum(shard.size for shard in store.meta.shards)) == "mmap":
        _name_signals()
        return Opened(store, None)
    files = Files()
    return Opened(store.reading_through(files.open), files)


def _name_signals() -> None:
    """A shard that is cut short or cannot be read while it is mapped kills the process: let it say where."""
    if not faulthandler.is_enabled():
        with suppress(AttributeError, OSError, RuntimeError, ValueError):  # there is no stderr to write to
            faulthandler.enable()


def choose_io(asked: str, folder: Path, num_bytes: int = 0, memory_bytes: int | None = None) -> str:
    """`mmap` or `pread`: what was asked for, or what suits the place and the size (`auto`).

    Args:
        num_bytes: of the store.
        memory_bytes: that this process may have; looked up by default.
    """
    if asked != "auto":
        return asked
    if os.name == "nt" or is_remote(file_system_of(folder)):
        return "pread"
    if memory_bytes is None:
        memory_bytes = describe_machine(look_for_gpu=False).memory_bytes
    return "mmap" if num_bytes <= memory_bytes else "pread"
