"""WorkerProcess: the parent's side of one worker: start, ask, watch, kill."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import psutil

from flatout.errors import FlatoutError, PrepareError
from flatout.store.worker import IDLE, PROGRESS, Progress, receive_body, send

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Workers are the parallelism; thread teams inside each would fight over the same cores."""
_LOOK_MS = 200
"""How often a wait for an answer looks whether the process lives."""
_MAX_TICK_NS = 1_000_000_000
"""Most that one look adds to a row's time: a row is not late because the whole job was suspended."""
_DYING_S = 1.0
"""A process that ends closes its pipe a moment before it is gone."""
_CARRY_CODE = ("setup", "describe", "run")
"""Requests that bring a maker or other code, which may come from a notebook."""
_ADVICE = "lower num_workers or preprocess_batch_size"
_IS_WINDOWS = os.name == "nt"


_KEEP_HEAP = {
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(192 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
}
"""glibc gives memory back after every sample, and after every shard, and faults it in again for the next:
35,280 volumes of 164 KB took 1,760,000 page faults and 21 s in the system so, and 80,000 with this much kept.
Nobody holds more for it at the peak: what is kept is what the shard before has used. Arrays from 4 MiB on are
left to the system: NumPy asks for huge pages for those. Other libraries of C do not know these names."""


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
        self.setup: Any = None
        """What it was set up with, for whoever sends it tasks."""
        self.max_bytes = max_bytes
        """Its share, where memory is short."""
        self._timeout_s = timeout_s
        self._killed_for: str | None = None
        self._timed_out = False
        self._group_is_over = False
        self._num_unwanted = 0
        """Answers that nobody waits for, before the one that somebody does."""
        self._lock = threading.Lock()
        self._row, self._row_ns, self._looked_ns = IDLE, 0, time.monotonic_ns()
        with _shared_file() as file:
            file.write(PROGRESS.pack(*IDLE))
            file.flush()
            self._shared_path = Path(file.name) if _IS_WINDOWS else None
            self._progress = Progress(file.fileno())
            watched, self._lifeline = os.pipe()
            try:
                self._process = _start(file, watched, sys_path)
            finally:
                os.close(watched)
        self._info = psutil.Process(self._process.pid)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def post(self, *request: Any) -> None:
        """Send a request without waiting for its answer.

        Raises:
            WorkerDiedError: there is nobody to take it.
        """
        try:
            send(self._process.stdin, request, by_value=request[0] in _CARRY_CODE)  # type: ignore[arg-type]
        except OSError as error:
            raise self._death() from error

    def wait(self, on_look: Callable[[int], None] = lambda position: None) -> Any:
        """The answer to the oldest request that has none yet.

        While it waits, `on_look` hears every moment which row the worker is at (-1: none).

        Raises:
            WorkerDiedError: the process died first. Any error that the request itself raised.
        """
        try:
            while self._num_unwanted:
                receive_body(partial(self._read, on_look=on_look))
                self._num_unwanted -= 1
            body = receive_body(partial(self._read, on_look=on_look))
        except (EOFError, OSError) as error:
            raise self._death() from error
        state, answer = pickle.loads(body)
        if state == "done":
            return answer
        failure, text = answer
        if isinstance(failure, FlatoutError | OSError):
            raise failure
        advice = f"; {_ADVICE}" if isinstance(failure, MemoryError) else ""
        raise PrepareError(f"a worker failed: {type(failure).__name__}: {failure}{advice}\n{text}") from failure

    def ask(self, *request: Any) -> Any:
        """Send a request and wait for its answer."""
        self.post(*request)
        return self.wait()

    def import_from(self, folders: Sequence[str]) -> None:
        """Let it find modules in these folders, too. Nobody waits; one that died is found by the next call."""
        with suppress(WorkerDiedError):
            self.post("import_from", folders)
            self._num_unwanted += 1

    def watch(self, memory_is_short: bool = True) -> None:
        """Kill the process if it is too long at one row, or takes more than its share of short memory."""
        row, now_ns = self._progress.read(), time.monotonic_ns()
        is_same = row == self._row and row[0] >= 0
        self._row_ns = self._row_ns + min(now_ns - self._looked_ns, _MAX_TICK_NS) if is_same else 0
        self._row, self._looked_ns = row, now_ns
        if self._row_ns > self._timeout_s * 1e9:
            self._timed_out = True
            self.kill(f"no result after {self._timeout_s:g} s (decode_timeout_s)")
        if not memory_is_short:
            return
        with suppress(psutil.Error):
            resident = self._info.memory_info().rss
            if resident > self.max_bytes:
                self.kill(f"it took {resident:,} bytes of memory, its share is {self.max_bytes:,}: {_ADVICE}")

    def kill(self, reason: str) -> None:
        """End the process now, with all that it started."""
        with self._lock:
            if self._process.poll() is None:
                self._killed_for = self._killed_for or reason
                self._process.kill()
                self._end_group()

    def close(self) -> None:
        """Let the process end; kill it if it does not."""
        with suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self.kill("prepare is over")
            self._process.wait()
        self._end_group()
        self._process.stdout.close()  # type: ignore[union-attr]
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        if self._shared_path is not None:
            self._shared_path.unlink(missing_ok=True)

    def _read(self, size: int, on_look: Callable[[int], None]) -> bytes:
        """Bytes of an answer. A process that the worker forked may keep the pipe open after its death."""
        pipe = self._process.stdout.fileno()  # type: ignore[union-attr]
        found = bytearray()
        while len(found) < size:
            if _is_readable(pipe):
                if not (piece := os.read(pipe, min(size - len(found), 1 << 20))):
                    break
                found += piece
            elif self._process.poll() is not None and not _is_readable(pipe):
                break
            else:
                on_look(self._progress.read()[0])
        return bytes(found)

    def _death(self) -> WorkerDiedError:
        try:
            self._process.wait(timeout=_DYING_S)
        except subprocess.TimeoutExpired:
            self.kill("it closed its pipe to prepare")
            self._process.wait()
        self._end_group()
        position, _ = self._progress.read()
        error = WorkerDiedError(position, self._killed_for or _cause(self._process.returncode))
        error.is_timeout = self._timed_out
        return error

    def _end_group(self) -> None:
        """Kill the worker's process group: a decoder may have started programs of its own."""
        with suppress(OSError):
            if not _IS_WINDOWS and not self._group_is_over:
                os.killpg(self._process.pid, signal.SIGKILL)
        # Once, at the end: later the number may belong to somebody else.
        self._group_is_over = self._process.returncode is not None


def _shared_file() -> IO[bytes]:
    """A file for a few bytes that both processes map. Without a name where possible: nothing is left behind."""
    if _IS_WINDOWS:
        return tempfile.NamedTemporaryFile(prefix="flatout-progress-", delete=False)
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("flatout-progress"), "w+b")
    return tempfile.TemporaryFile()


def _start(shared: IO[bytes], lifeline: int, sys_path: Sequence[str]) -> subprocess.Popen[bytes]:
    name = shared.name if _IS_WINDOWS else str(shared.fileno())
    posix: dict[str, Any] = {"process_group": 0, "pass_fds": [shared.fileno(), lifeline]}
    return subprocess.Popen(
        [sys.executable, "-m", "flatout.store.worker", name, str(lifeline), *sys_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=worker_environment(),
        **({} if _IS_WINDOWS else posix),
    )


def worker_environment() -> dict[str, str]:
    """The environment that workers run in: one thread each, and a heap that is kept."""
    return {**os.environ, **dict.fromkeys(_ONE_THREAD, "1"), **_KEEP_HEAP}


def _is_readable(pipe: int) -> bool:
    """Whether a read would not wait, after a short wait; Windows cannot tell, its reads simply wait."""
    if _IS_WINDOWS:
        return True
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(_LOOK_MS))


def _cause(code: int) -> str:
    if code == -9:
        return f"killed by signal 9, most likely out of memory: {_ADVICE}"
    return f"the decoder crashed (signal {-code})" if code < 0 else f"the process ended with code {code}"
