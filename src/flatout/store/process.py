"""WorkerProcess: the parent's side of one worker: start, ask, watch, kill."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from flatout.errors import FlatoutError, PrepareError
from flatout.store.worker import IDLE, PROGRESS, Progress, receive, send

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Workers are the parallelism; thread teams inside each would fight over the same cores."""


class WorkerDiedError(FlatoutError):
    """The process is gone; `position` is the row it was at (-1: between rows), `reason` why."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"a worker died at row {position}: {reason}")
        self.position = position
        self.reason = reason
        self.is_timeout = False


class WorkerProcess:
    """One worker. All calls come from one thread, `watch` and `kill` from any."""

    def __init__(self, sys_path: Sequence[str], timeout_s: float, max_bytes: int) -> None:
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._killed_for: str | None = None
        self._timed_out = False
        self._lock = threading.Lock()
        descriptor, name = tempfile.mkstemp(prefix="flatout-progress-")
        with os.fdopen(descriptor, "wb") as file:
            file.write(PROGRESS.pack(*IDLE))
        self._progress_path = Path(name)
        self._progress = Progress(self._progress_path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flatout.store.worker", name, *sys_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1")},
        )
        self._info = psutil.Process(self._process.pid)

    def post(self, *request: Any) -> None:
        """Send a request without waiting for its answer.

        Raises:
            WorkerDiedError: there is nobody to take it.
        """
        try:
            send(self._process.stdin, request)  # type: ignore[arg-type]
        except (BrokenPipeError, OSError) as error:
            raise self._death() from error

    def wait(self) -> Any:
        """The answer to the oldest request that has none yet.

        Raises:
            WorkerDiedError: the process died first. Any error that the request itself raised.
        """
        try:
            state, answer = receive(self._process.stdout)  # type: ignore[arg-type]
        except (EOFError, OSError) as error:
            raise self._death() from error
        if state == "done":
            return answer
        failure, text = answer
        if isinstance(failure, FlatoutError | OSError):
            raise failure
        raise PrepareError(f"a worker failed: {failure}\n{text}") from failure

    def ask(self, *request: Any) -> Any:
        """Send a request and wait for its answer."""
        self.post(*request)
        return self.wait()

    def watch(self) -> None:
        """Kill the process if it is too long at one row, or takes too much memory."""
        position, since_ns = self._progress.read()
        seconds = (time.monotonic_ns() - since_ns) / 1e9
        if position >= 0 and seconds > self._timeout_s:
            self._timed_out = True
            self.kill(f"no result after {self._timeout_s:g} s (decode_timeout_s)")
        with suppress(psutil.Error):
            resident = self._info.memory_info().rss
            if resident > self._max_bytes:
                self.kill(f"it took {resident:,} bytes of memory, more than its share of {self._max_bytes:,}")

    def kill(self, reason: str) -> None:
        """End the process now."""
        with self._lock:
            if self._process.poll() is None:
                self._killed_for = self._killed_for or reason
                self._process.kill()

    def close(self) -> None:
        """Let the process end; kill it if it does not."""
        with suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self.kill("prepare is over")
            self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]
        self._progress_path.unlink(missing_ok=True)

    def _death(self) -> WorkerDiedError:
        self._process.wait()
        position, _ = self._progress.read()
        error = WorkerDiedError(position, self._killed_for or _cause(self._process.returncode))
        error.is_timeout = self._timed_out
        return error


def _cause(code: int) -> str:
    if code == -9:
        return "killed by signal 9, most likely out of memory: lower num_workers or preprocess_batch_size"
    return f"the decoder crashed (signal {-code})" if code < 0 else f"the process ended with code {code}"
