"""Switching: the interpreter hands over from thread to thread sooner while producers live."""

from __future__ import annotations

import os
import sys
import threading

SWITCH_S = 5e-4
"""Interpreter's switch interval while producers live: with a busy main thread the default of 5 ms costs
20-40 % waiting."""


class Switching:
    """Lowers the interpreter's switch interval while any producer lives, and puts it back."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finaliser may leave while its thread enters
        self._pid = os.getpid()
        self._count = 0
        self._before = 0.0

    def enter(self) -> None:
        if self._pid != os.getpid():
            self._start_anew()
        with self._lock:
            if self._count == 0:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, SWITCH_S))
            self._count += 1

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                sys.setswitchinterval(self._before)

    def _start_anew(self) -> None:
        """A forked child has no producers, whatever its parent had."""
        if self._count:
            sys.setswitchinterval(self._before)
        self._lock, self._count, self._pid = threading.RLock(), 0, os.getpid()


switching = Switching()
