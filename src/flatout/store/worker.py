"""The worker process: takes requests on standard input, makes shards, answers on standard output.

Started with `python -m flatout.store.worker`, not forked: a fork of a threaded parent can hang, and
multiprocessing's spawn would run the caller's script again. So a notebook, an unguarded script and a
threaded program can all start a prepare.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Any, BinaryIO

from flatout.source import keeping_no_bytecode
from flatout.types import RowBlock

HEADER = struct.Struct("<Q")
PROGRESS = struct.Struct("qq")
"""Position of the row being made (-1: none) and how many requests were answered before."""
IDLE = (-1, 0)
MAX_BEHIND = 3
"""Shards that wait for the disk while the next one is made: the time of an fsync varies by a factor of ten."""


def send(pipe: BinaryIO, message: Any, *, by_value: bool = False) -> None:
    """Write one message: its length, then its pickle.

    By value: with the code of classes that the other side cannot import (a notebook's), at twice the cost.
    """
    if by_value:
        import cloudpickle

        body = cloudpickle.dumps(message)
    else:
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    pipe.write(HEADER.pack(len(body)))
    pipe.write(body)
    pipe.flush()


def receive_body(read: Callable[[int], bytes]) -> bytes:
    """One message, not unpickled yet.

    Args:
        read: takes a number of bytes and gives as many, or fewer at the end.

    Raises:
        EOFError: the other end is gone.
    """
    (size,) = HEADER.unpack(_exactly(read, HEADER.size))
    return _exactly(read, size)


def _exactly(read: Callable[[int], bytes], size: int) -> bytes:
    data = read(size)
    if len(data) < size:
        raise EOFError
    return data


class Progress:
    """A few shared bytes in which a worker says what it is at: 0.1 us a row, without a system call or a clock.

    Nobody begins a row twice within one request, so the same two numbers are the same try at the same row.
    """

    def __init__(self, descriptor: int) -> None:
        self._numbers = memoryview(mmap.mmap(descriptor, PROGRESS.size)).cast("q")

    def begin(self, position: int) -> None:
        self._numbers[0] = position

    def idle(self) -> None:
        """A request was answered."""
        self._numbers[0] = IDLE[0]
        self._numbers[1] += 1

    def read(self) -> tuple[int, int]:
        position, num_answered = self._numbers
        return position, num_answered


class Worker:
    """Answers requests one after another; one shard is made at a time, while those before go to disk."""

    def __init__(self, progress: Progress) -> None:
        from flatout.store import column, task  # now, while the parent looks at its manifest

        self._tasks = task
        self._progress = progress
        self._setup: Any = None
        self._task: Any = None
        self._slabs = column.Slabs()
        self._writing = ThreadPoolExecutor(1)
        self._disk = ThreadPoolExecutor(1)
        self._unwritten: Future[Any] | None = None
        self._behind: list[Future[Any]] = []

    def answer(self, request: tuple[Any, ...]) -> Any:
        """The answer to one request: (name, arguments...)."""
        name, *arguments = request
        handlers: dict[str, Callable[..., Any]] = {
            "import_from": _import_from,
            "setup": self._set_up,
            "describe": self._describe,
            "start": self._start,
            "rows": self._rows,
            "finish": self._finish,
            "settle": self._settle,
            "call": self._call,
            "run": self._call,  # the same with code that cannot be imported here
        }
        return handlers[name](*arguments)

    def _set_up(self, setup: Any) -> None:
        self._setup = setup

    def _call(self, function: Any, part: Any) -> Any:
        return function(part)

    def _describe(self, maker: Any, rows: Any) -> Any:
        found = []
        for position, row in enumerate(rows):
            self._progress.begin(position)  # until the answer is sent: a row may break that, too
            found += self._tasks.describe(maker, [row])
        return found

    def _start(self, number: int, barred: Any) -> None:
        self._task = self._tasks.ShardTask(self._setup, number, barred, self._slabs)

    def _rows(self, block: RowBlock) -> tuple[int, list[Any]]:
        """The number of rows, when they are made, and receipts of earlier tasks that came in meanwhile."""
        self._task.feed(block.rows(), self._progress.begin, self._unwritten)
        return len(block), self._receipts()

    def _finish(self) -> list[Any]:
        """Begin to write the shard; its receipt comes later. Some that are written may wait for the disk."""
        if self._unwritten is not None:
            wait([self._unwritten])
        if len(self._behind) >= MAX_BEHIND:
            wait(self._behind, return_when=FIRST_COMPLETED)
        receipts = self._receipts()
        task, self._task = self._task, None
        self._unwritten, settled = task.finish_behind(self._writing, self._disk)
        self._behind.append(settled)
        return receipts

    def _settle(self) -> list[Any]:
        """The receipts of all tasks that are finished, when they are on disk."""
        wait(self._behind)
        return self._receipts()

    def _receipts(self) -> list[Any]:
        """Of the tasks that are on disk. One that failed is told when no other has a receipt to hand out."""
        done = [future for future in self._behind if future.done()]
        good = [future for future in done if future.exception() is None]
        told = good or done[:1]
        self._behind = [future for future in self._behind if future not in told]
        return [future.result() for future in told]


def main() -> None:
    """Serve until the parent closes the pipe, or is gone."""
    for name in ("SIGINT", "SIGTTOU"):  # Ctrl-C is the parent's to handle; printing must not stop us
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    # A transform's print() must not end up in the conversation.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    progress = _open_progress(sys.argv[1])
    _end_with(int(sys.argv[2]))
    _import_from(sys.argv[3:])
    waiting: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(requests, waiting), daemon=True).start()
    worker = Worker(progress)
    gc.freeze()  # 0.2 % of a worker's time went into looking for garbage among what was imported
    while True:
        answer = _answer(worker, waiting.get())
        try:
            send(answers, answer, by_value=answer[0] == "failed")
        except OSError:  # the parent is gone, or a decoder closed what was not its own
            os._exit(1)
        progress.idle()


def _import_from(folders: Sequence[str]) -> None:
    sys.path[:0] = folders


def _end_with(lifeline: int) -> None:
    """Let the system end this process when the parent's end of a pipe closes.

    `_listen` does so everywhere, unless a decoder holds the interpreter's lock for good; SIGIO, whose default
    action is to end the process, does so on Linux even then.
    """
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _listen(requests: BinaryIO, waiting: SimpleQueue[bytes]) -> None:
    """Collect requests; end the process with the parent, even while a decoder hangs in the main thread."""
    try:
        while True:
            waiting.put(receive_body(requests.read))
    except (EOFError, OSError, ValueError):
        os._exit(1)


def _answer(worker: Worker, body: bytes) -> tuple[str, Any]:
    """Both ends are this program; nothing from a store or a file is ever unpickled here."""
    try:
        with keeping_no_bytecode():  # what is imported here is a user's
            request = pickle.loads(body)
        return "done", worker.answer(request)
    except BaseException as error:
        return "failed", (_portable(error), traceback.format_exc())


def _portable(error: BaseException) -> BaseException:
    """The error, or its text where it does not survive the way to the parent."""
    import cloudpickle

    try:
        pickle.loads(cloudpickle.dumps(error))
        return error
    except BaseException:
        from flatout.store.making import describe_error

        return RuntimeError(describe_error(error))


def _open_progress(name: str) -> Progress:
    """What the parent shares: a descriptor that it handed down, or a path where that is not possible."""
    descriptor = int(name) if name.isdigit() else os.open(name, os.O_RDWR)
    try:
        return Progress(descriptor)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
