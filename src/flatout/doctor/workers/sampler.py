"""Sampler: a thread that looks every few milliseconds what another thread is doing, by function and line.

A look takes 60 us with the change of threads, or 150 on a busy machine, and is due every 8 ms, or later where
the thread would lose more than its share to it; what it takes is measured and given with the counts. Unlike a
trace it slows no call down.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from time import sleep, thread_time
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from flatout.doctor.child.exit import OWN_FOLDER
from flatout.doctor.child.log import RowLog
from flatout.doctor.workers.places import call_text, is_logging, is_reading, places_of

if TYPE_CHECKING:
    from flatout.doctor.child.watch import Watch

PERIOD_S, LONGEST_PERIOD_S = 0.008, 0.1
MAX_SHARE = 0.01
"""Of a core that looks may take: the rest of the two per cent that are promised is for everything else."""
MAX_DEPTH = 60
MAKE = "make"
"""The phase in which a batch is made."""

Stack = tuple[tuple[CodeType, int], ...]
"""Code and instruction of each frame, the innermost first."""


class Sampler:
    """Counts stacks of one thread: while it makes a batch, and while it trains."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, Stack]] = Counter()
        self._target: int | None = None
        self._making: int | None = None
        self._watch: Watch | None = None
        self._thread: threading.Thread | None = None
        self._log: RowLog | None = None
        self._cpu_s = 0.0
        self._taken_s = 0.0

    def watch_training(self, watch: Watch) -> None:
        """Look at the training thread, whatever it does, from here on."""
        self._watch = watch
        self._start()

    def stop_training(self) -> None:
        """No longer; batches that it makes are still looked at."""
        self._watch = None

    def begin_making(self, ident: int) -> None:
        """The thread makes a batch."""
        self._making = ident
        self._start()

    def end_making(self) -> None:
        """The batch is made."""
        self._making = None

    def forget(self) -> None:
        """In a forked child, where the thread does not exist."""
        self.counts = Counter()
        self._making = self._watch = self._thread = self._log = None
        self._cpu_s = self._taken_s = 0.0

    def take_cpu_s(self) -> float:
        """CPU seconds of the sampling thread since the last time."""
        total = self._cpu_s
        seconds, self._taken_s = total - self._taken_s, total
        return seconds

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the sampling thread so far."""
        return self._cpu_s

    def write(self, folder: Path) -> None:
        """Append the counts to a file of this process."""
        counts, self.counts = self.counts, Counter()
        if self._log is None:
            self._log = RowLog(folder, "samples")
        for (phase, stack), number in list(counts.items()):  # the thread may still add to it
            self._log.add((phase, number, *_described(stack)))
        self._log.flush()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="flatout-doctor", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        num_looks, period_s = 0, PERIOD_S
        while True:
            sleep(period_s)
            phase, ident = self._phase()
            if ident is not None:
                frame = sys._current_frames().get(ident)
                if frame is not None:
                    self.counts[phase, _stack_of(frame, ends_at_own=phase == MAKE)] += 1
                del frame
            num_looks, self._cpu_s = num_looks + 1, thread_time()
            period_s = pause_of(self._cpu_s / num_looks)

    def _phase(self) -> tuple[str, int | None]:
        if self._making is not None:
            return MAKE, self._making
        watch = self._watch
        if watch is None or not watch.is_on:
            return "", None
        stack = watch.stack
        return (stack[-1] if stack else "other"), watch.thread


def pause_of(look_s: float) -> float:
    """Seconds until the next look, if one takes `look_s` of a core: no more than the share, nor for ever."""
    return min(max(PERIOD_S, look_s / MAX_SHARE), LONGEST_PERIOD_S)


def _stack_of(frame: FrameType | None, *, ends_at_own: bool) -> Stack:
    """What is above the doctor's own frames belongs to the loop, not to the dataset."""
    stack: list[tuple[CodeType, int]] = []
    while frame is not None and len(stack) < MAX_DEPTH:
        if not frame.f_code.co_filename.startswith(OWN_FOLDER):
            stack.append((frame.f_code, frame.f_lasti))
        elif ends_at_own and stack:
            break
        frame = frame.f_back
    return tuple(stack)


def _described(stack: Stack) -> tuple[list[list[Any]], str, bool, bool]:
    """Places from the outermost in, the innermost call, and whether it reads or logs."""
    text = call_text(*stack[0]) if stack else ""
    files = [code.co_filename for code, _ in stack]
    return places_of(stack, text), text, is_reading(text, files), is_logging(text, files)


SAMPLER = Sampler()
