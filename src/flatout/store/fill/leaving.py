"""Leaving: something is still called when a process ends, whether a main one or a worker of a DataLoader."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from multiprocessing.util import Finalize


class Leaving:
    """Calls `callback` at the end of this process, unless it is cancelled before."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        # Workers run no atexit handlers but multiprocessing's own. In a main process those come late, after
        # h5py took its own part down; atexit runs the last registered first.
        atexit.register(callback)
        self._in_worker = Finalize(None, callback, exitpriority=100)

    def cancel(self) -> None:
        atexit.unregister(self._callback)
        self._in_worker.cancel()
