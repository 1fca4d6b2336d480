"""Looks at the script's processes from outside, which cost the script nothing."""

from __future__ import annotations

from contextlib import suppress
from time import perf_counter

import psutil

from flatout.doctor.launch.device import Device
from flatout.doctor.record import Look

EVERY_S = 0.5
MAX_LOOKS = 600
"""Later ones are thinned out: every second one goes, and the pause doubles."""


class Looks:
    """CPU and memory of a process and all its children."""

    def __init__(self, pid: int, start: float) -> None:
        self.taken: list[Look] = []
        self._start = start
        self._every_s = EVERY_S
        self._last = (start, 0.0)
        self._device = Device()
        self._cpu: dict[int, float] = {}
        self._root: psutil.Process | None = None
        with suppress(psutil.Error):
            self._root = psutil.Process(pid)

    def look_sometimes(self) -> None:
        """Take a look if one is due."""
        now = perf_counter()
        if now - self._last[0] >= self._every_s:
            self._look(now)

    def _look(self, now: float) -> None:
        rss = 0
        for process in self._processes():
            with suppress(psutil.Error):
                times = process.cpu_times()
                self._cpu[process.pid] = times.user + times.system
                rss += process.memory_info().rss
        total = sum(self._cpu.values())  # those that ended keep what they had used
        before, used = self._last
        self._last = (now, total)
        if rss:
            cores = max(0.0, total - used) / max(now - before, 1e-9)
            self.taken.append(Look(now - self._start, cores, rss, **self._device.look()))
        if len(self.taken) > MAX_LOOKS:
            del self.taken[1::2]
            self._every_s *= 2

    def _processes(self) -> list[psutil.Process]:
        if self._root is None:
            return []
        with suppress(psutil.Error):
            return [self._root, *self._root.children(recursive=True)]
        return []
