"""Start the script as its user would, under observation, and wait for it; signals are passed on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

import psutil

from flatout.doctor.child.start import VARIABLE, write_customize
from flatout.doctor.launch.looks import Looks
from flatout.doctor.observe.settings import ObserveSettings
from flatout.doctor.record import Look
from flatout.errors import ConfigError

POLL_S = 0.05
GRACE_S = 20.0
"""After it was asked to end, a script has this long. One that was to run to its end has it after the second
time: it may be writing its last checkpoint."""


@dataclass(frozen=True)
class Script:
    """What to run: a file, or a module as `python -m` finds it."""

    path: Path | None
    module: str | None
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """As the user wrote it."""
        return str(self.path) if self.path is not None else f"-m {self.module}"

    def command(self) -> list[str]:
        """The interpreter's command line.

        Raises:
            ConfigError: there is no such file.
        """
        if self.module is not None:
            return [sys.executable, "-m", self.module, *self.arguments]
        if self.path is None or not self.path.is_file():
            raise ConfigError(
                f"{self.path} is no file; give the script that you train with, or -m package.module"
            )
        return [sys.executable, str(self.path), *self.arguments]


@dataclass(frozen=True)
class Ended:
    """What the system says about a script that is over."""

    pid: int
    code: int
    """As shells count: 128 + signal for a script that a signal ended."""
    looks: tuple[Look, ...]
    seconds: float
    was_interrupted: bool
    was_killed: bool = False
    """By us, since it did not listen."""


def launch(
    script: Script,
    settings: ObserveSettings,
    folder: Path,
    *,
    stdout: Any = None,
    on_poll: Callable[[], None] = lambda: None,
) -> Ended:
    """Run the script to its end.

    Args:
        folder: an empty one, for what the observed processes write.
        stdout: where the script prints; absent: where this process does.
        on_poll: called now and then while the script runs.
    """
    command = script.command()
    settings.write(folder)
    start = perf_counter()
    process = subprocess.Popen(command, env=_environment(folder), stdout=stdout)
    looks = Looks(process.pid, start)
    try:
        with _Signals(process, num_patient=int(settings.is_full)) as signals:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
                looks.look_sometimes()
                on_poll()
                signals.insist()
    finally:
        if process.poll() is None:  # whatever went wrong here, nobody would ever end the script
            end_all(process)
            process.wait()
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    seconds = perf_counter() - start
    return Ended(process.pid, code, tuple(looks.taken), seconds, signals.were_sent, signals.have_killed)


def _environment(folder: Path) -> dict[str, str]:
    paths = [str(write_customize(folder)), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, VARIABLE: str(folder), "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


class _Signals:
    """Ctrl-C and SIGTERM are for the script: it ends as it would end alone, and is reported on afterwards."""

    def __init__(self, process: subprocess.Popen[bytes], num_patient: int = 0) -> None:
        self._process = process
        self._num_patient = num_patient
        """Signals that are passed on and no more."""
        self._before: dict[int, Any] = {}
        self._since: float | None = None
        self.were_sent = False
        self.have_killed = False

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._pass_on)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.were_sent = True
        if self._num_patient:
            self._num_patient -= 1
        else:
            self._since = self._since or perf_counter()
        if number == signal.SIGTERM or not _is_terminals():  # a terminal sends Ctrl-C to all its processes
            self._process.send_signal(number)

    def insist(self) -> None:
        """End a script that does not listen."""
        if self._since is not None and perf_counter() - self._since > GRACE_S:
            self.have_killed = True
            end_all(self._process)


def end_all(process: subprocess.Popen[bytes]) -> None:
    """End a script with the workers and ranks that it has started, which would wait for it for ever."""
    started: list[psutil.Process] = []
    with suppress(psutil.Error):
        started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for each in started:
        with suppress(psutil.Error):
            each.kill()


def _is_terminals() -> bool:
    """Whether Ctrl-C reaches the script by itself, from the terminal that both belong to."""
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False
