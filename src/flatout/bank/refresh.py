"""Refresh: one generation of views made behind a training's back, by a process that yields to everything else.

A thread would share the interpreter's lock with the training; a process of normal priority its cores.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from flatout.bank.order import ViewOrder
from flatout.errors import StoreLockedError
from flatout.store.derive import program_folders
from flatout.store.process import WorkerDiedError, WorkerProcess

_log = logging.getLogger(__name__)

LOCKED_S = 1.0
"""Seconds between two looks at views that another rank is making."""
NO_LIMIT = float("inf")
LOWEST_PRIORITY = 19


class Refresh:
    """Views of one epoch on their way. All calls come from one thread."""

    def __init__(self, order: ViewOrder, folder: Path) -> None:
        self.epoch = order.epoch
        self.folder = folder
        self._error: BaseException | None = None
        self._worker = WorkerProcess(program_folders(), NO_LIMIT, 1 << 62)
        yield_to_others(self._worker.pid)  # now: its imports alone are seconds of work
        self._thread = threading.Thread(
            target=self._run, args=(order,), name="flatout-view-refresh", daemon=True
        )
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Whether the views are there, after so long at the most; not if the process died.

        Raises:
            Whatever the making raised.
        """
        self._thread.join(timeout=timeout_s)
        if isinstance(self._error, WorkerDiedError):
            reason = self._error.reason
            _log.warning("the process that made the views of epoch %d died: %s", self.epoch, reason)
            return False
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End the process, whatever it is at; what it finished stays in its folder."""
        self._worker.kill("the view bank was closed")
        self._thread.join(timeout=5.0)

    def _run(self, order: ViewOrder) -> None:
        try:
            self._worker.ask("run", make_behind, (order, self.folder))
        except BaseException as error:
            self._error = error
        finally:
            self._worker.close()


def make_behind(work: tuple[ViewOrder, Path]) -> None:
    """Make views with one thread; what `Refresh` runs in a process of its own."""
    import torch

    torch.set_num_threads(1)
    order, folder = work
    make_shared(order, folder, num_workers=0)


def make_shared(order: ViewOrder, folder: Path, *, num_workers: int | None) -> None:
    """Make the views, or wait for another rank that is at it; whoever comes second finds them made."""
    while True:
        try:
            order.make(folder, num_workers=num_workers)
            return
        except StoreLockedError:
            time.sleep(LOCKED_S)


def yield_to_others(pid: int) -> None:
    """Let a process give way to every other one, as far as the system can."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, pid, LOWEST_PRIORITY)
    with suppress(OSError, AttributeError):
        # Such a process gives its core back the moment that a training's thread wakes up.
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
