"""The worker process: takes requests on standard input, makes shards, answers on standard output.

Started with `python -m flatout.store.worker`, not forked: a fork of a threaded parent can hang, and
multiprocessing's spawn would run the caller's script again. So a notebook, an unguarded script and a
threaded program can all start a prepare.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

HEADER = struct.Struct("<Q")
PROGRESS = struct.Struct("<qq")
"""Position of the row being made (-1: none) and the monotonic nanosecond it was begun."""
IDLE = (-1, 0)


def send(pipe: BinaryIO, message: Any) -> None:
    """Write one message: its length, then its pickle."""
    import cloudpickle

    body = cloudpickle.dumps(message)
    pipe.write(HEADER.pack(len(body)))
    pipe.write(body)
    pipe.flush()


def receive(pipe: BinaryIO) -> Any:
    """Read one message. Both ends are this program; nothing from a store or a file ever comes this way.

    Raises:
        EOFError: the other end is gone.
    """
    (size,) = HEADER.unpack(_read(pipe, HEADER.size))
    return pickle.loads(_read(pipe, size))


def _read(pipe: BinaryIO, size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data


class Progress:
    """A few shared bytes in which a worker says what it is at; written without a system call."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb+") as file:
            self._map = mmap.mmap(file.fileno(), PROGRESS.size)

    def begin(self, position: int) -> None:
        PROGRESS.pack_into(self._map, 0, position, time.monotonic_ns())

    def idle(self) -> None:
        PROGRESS.pack_into(self._map, 0, *IDLE)

    def read(self) -> tuple[int, int]:
        position, since_ns = PROGRESS.unpack_from(self._map, 0)
        return position, since_ns


class Worker:
    """Answers requests one after another; one shard is under way at a time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._setup: Any = None
        self._task: Any = None

    def answer(self, request: tuple[Any, ...]) -> Any:
        """The answer to one request: (name, arguments...)."""
        name, *arguments = request
        handlers: dict[str, Callable[..., Any]] = {
            "setup": self._set_up,
            "describe": self._describe,
            "start": self._start,
            "rows": self._rows,
            "finish": self._finish,
        }
        try:
            return handlers[name](*arguments)
        finally:
            self._progress.idle()

    def _set_up(self, setup: Any) -> None:
        self._setup = setup

    def _describe(self, maker: Any, rows: Any) -> Any:
        from flatout.store.task import describe

        found = []
        for position, row in enumerate(rows):
            self._progress.begin(position)
            found += describe(maker, [row])
        return found

    def _start(self, number: int, barred: Any) -> None:
        from flatout.store.task import ShardTask

        self._task = ShardTask(self._setup, number, barred)

    def _rows(self, rows: Any) -> int:
        self._task.feed(rows, self._progress.begin)
        return len(rows)

    def _finish(self) -> Any:
        task, self._task = self._task, None
        return task.finish()


def main() -> None:
    """Serve until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    # A transform's print() must not end up in the conversation.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    worker = Worker(Progress(Path(sys.argv[1])))
    for folder in reversed(sys.argv[2:]):
        sys.path.insert(0, folder)
    while True:
        try:
            request = receive(requests)
        except EOFError:
            return
        try:
            answer = ("done", worker.answer(request))
        except BaseException as error:
            answer = ("failed", (error, traceback.format_exc()))
        try:
            send(answers, answer)
        except BrokenPipeError:
            return
        except Exception as error:  # an exception that does not pickle
            send(answers, ("failed", (RuntimeError(str(error)), traceback.format_exc())))


if __name__ == "__main__":
    main()
