"""Contestants in processes of their own, frozen between their rounds: nobody makes batches while others run.

All are forked from one server that has the libraries imported. A contestant and its workers are a process
group, which is stopped (SIGSTOP) as soon as a round is over: what it has prefetched stays what a running
training has.
"""

from __future__ import annotations

import json
import os
import signal
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from flatout.bench.train_rounds import Asked, Figures
from flatout.errors import FlatoutError

PRELOADED = ["flatout.bench.train_contestant", "monai.networks.nets", "flatout.augment", "scipy.signal"]
"""What the server imports; one that is missing is missed by whoever needs it."""
HANG_S = 900.0
"""Longer than any round."""


class Contestant:
    """The race's side of a contestant."""

    def __init__(self, name: str, entry: dict[str, Any]) -> None:
        self.name = name
        self.rounds: list[Figures] = []
        self._entry = entry

    @contextmanager
    def running(self) -> Iterator[Contestant]:
        """Set it up, and end it afterwards.

        Raises:
            FlatoutError: it failed.
        """
        context: Any = get_context("forkserver" if hasattr(os, "fork") else "spawn")
        context.set_forkserver_preload(PRELOADED)
        self._pipe, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, json.dumps(self._entry)), name=self.name)
        process.start()
        theirs.close()
        self._pid = process.pid or 0
        try:
            self.facts = self._receive()
            self._signal("SIGSTOP")
            yield self
        finally:
            self._signal("SIGKILL")
            process.kill()
            process.join()
            process.close()
            self._pipe.close()

    def run(self, asked: Asked) -> Figures:
        """A round.

        Raises:
            FlatoutError: it failed, with the end of what it said.
        """
        self._signal("SIGCONT")
        self._pipe.send_bytes(json.dumps(vars(asked)).encode())
        figures = self._receive()
        self._signal("SIGSTOP")
        return figures

    def _receive(self) -> Figures:
        try:
            if not self._pipe.poll(HANG_S):
                raise FlatoutError(f"{self.name} has not answered for {HANG_S:.0f} s")
            answer: Figures = json.loads(self._pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise FlatoutError(f"{self.name} died without a word") from error
        if "error" in answer:
            raise FlatoutError(f"{self.name} failed: {answer['error'][-2000:]}")
        return answer

    def _signal(self, name: str) -> None:
        """To the contestant and its workers; not where there are no process groups."""
        with suppress(ProcessLookupError, PermissionError):
            if self._pid and hasattr(os, "killpg"):
                os.killpg(self._pid, getattr(signal, name))


def _serve(pipe: Connection, entry: str) -> None:
    """The contestant's process; what libraries print goes to standard error."""
    from flatout.bench.train_contestant import Entry, compete

    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")

    def exchange(figures: Figures) -> Asked:
        pipe.send_bytes(json.dumps(figures).encode())
        return Asked(**json.loads(pipe.recv_bytes()))

    try:
        compete(Entry(**json.loads(entry)), exchange)
    except EOFError:  # the race is over
        return
    except BaseException as error:  # also an exit: the race must not wait for ever
        said = str(error) if isinstance(error, FlatoutError) else traceback.format_exc()
        pipe.send_bytes(json.dumps({"error": said}).encode())
