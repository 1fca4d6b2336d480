"""Counters of the kernel for this process: bytes and calls read, and how long it was ready but had no core."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple


class Counted(NamedTuple):
    """Totals since the process began; None where the system does not tell."""

    run_wait_s: float | None
    read_bytes: int | None
    num_reads: int | None
    disk_bytes: int | None

    def since(self, before: Counted) -> tuple[float | None, ...]:
        """What was added since an earlier look."""
        pairs = zip(self, before, strict=True)
        return tuple(None if now is None or then is None else now - then for now, then in pairs)


class Counters:
    """Two files of /proc that stay open: a look takes some 5 us."""

    def __init__(self) -> None:
        self._waits = _open("/proc/thread-self/schedstat")
        self._io = _open("/proc/self/io")

    def look(self) -> Counted:
        """The totals now, of the thread that made this object."""
        run_wait_s = None
        if self._waits is not None:
            run_wait_s = int(os.pread(self._waits, 128, 0).split()[1]) / 1e9
        if self._io is None:
            return Counted(run_wait_s, None, None, None)
        fields = os.pread(self._io, 512, 0).split()
        return Counted(run_wait_s, int(fields[1]), int(fields[5]), int(fields[9]))

    def close(self) -> None:
        """Give the files back."""
        for descriptor in (self._waits, self._io):
            if descriptor is not None:
                os.close(descriptor)
        self._waits = self._io = None


def _open(path: str) -> int | None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            os.pread(descriptor, 512, 0)
        except OSError:
            os.close(descriptor)
        else:
            return descriptor
    return None
