"""Where a store lies: on a local disk, or behind a network or FUSE mount.

An I/O error under a memory map is a signal that kills the process; a read call returns it. So maps are for
local disks.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from flatout.loader.pread import Files
from flatout.store import StoreReader

REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "glusterfs", "9p", "beegfs"}


class Opened(NamedTuple):
    """A store whose shards are mapped, or read by calls."""

    store: StoreReader
    files: Files | None
    """What they are read with; None: they are mapped."""


def open_as(store: StoreReader, io: str) -> Opened:
    """The store as `io` says: itself for `mmap`; for `pread` the same version without a single map."""
    if choose_io(io, store.folder) == "mmap":
        return Opened(store, None)
    files = Files()
    return Opened(store.reading_through(files.open), files)


def choose_io(asked: str, folder: Path) -> str:
    """`mmap` or `pread`: what was asked for, or what suits the place (`auto`)."""
    if asked != "auto":
        return asked
    return "pread" if os.name == "nt" or is_remote(file_system_of(folder)) else "mmap"


def is_remote(file_system: str) -> bool:
    """Network file systems, and FUSE, behind which anything may be."""
    return file_system in REMOTE or file_system.startswith("fuse")


def file_system_of(folder: Path, mounts: str | None = None) -> str:
    """Type of the file system that holds `folder`; empty where the system does not say."""
    if mounts is None:
        if sys.platform != "linux":
            return ""
        try:
            mounts = Path("/proc/self/mounts").read_text()
        except OSError:
            return ""
    wanted, best, found = folder.resolve(), -1, ""
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ", 3)
        place = Path(point.encode().decode("unicode_escape"))
        if (wanted == place or place in wanted.parents) and len(place.parts) >= best:
            best, found = len(place.parts), kind
    return found
