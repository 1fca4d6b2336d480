"""Trials from outside: the process that runs them, asked one thing at a time, started again if it dies."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from flatout import errors
from flatout.config import Config
from flatout.doctor.tune.facts import Facts
from flatout.doctor.tune.model import Service
from flatout.doctor.tune.race import Failed, Slice
from flatout.doctor.tune.room import check_free
from flatout.doctor.tune.setting import Setting
from flatout.errors import FlatoutError
from flatout.loader.machine import describe_machine

OPEN_S = 600.0
"""Longest time for opening the data."""
LOOK_S = 0.2
"""How often memory is looked at while a trial runs: it cannot look itself while it waits for its workers."""
LAST_RESERVE = 0.03
"""Share of the memory below which a trial is ended from outside; from inside it ends earlier."""
PATIENCE = 30
"""A stretch may take this many times its length and what a tuning has patience for; then it is given up."""
LEAST_PATIENCE_S = 20.0
STARTS = 3
"""Processes that may die in one tuning."""


class Trials:
    """A process that measures settings of one config. Use as a context manager.

    Args:
        cap_bytes: private memory that it may take beyond what it starts with (Linux).
        command: what prepares the store, for notes.
        patience_s: seconds beyond its own length after which a stretch is given up, 20 at the least: workers
            start in it.
    """

    def __init__(
        self, config: Config, cap_bytes: int, command: str = "flatout prepare", *, patience_s: float = 60.0
    ) -> None:
        self._config = config
        self._command = command
        self._cap_bytes = cap_bytes
        self._patience_s = max(LEAST_PATIENCE_S, patience_s)
        self._folder = tempfile.TemporaryDirectory(
            prefix=".flatout-tune-", dir=_place_for_copies(config), ignore_cleanup_errors=True
        )
        self._child: _Child | None = None
        self._num_starts = 0
        self._probe_s: float | None = None

    def __enter__(self) -> Trials:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._folder.cleanup()

    def facts(self) -> Facts:
        """What is known before the first trial.

        Raises:
            FlatoutError: the data cannot be opened.
        """
        return Facts.from_json(self._must({"do": "facts"}, OPEN_S))

    def probe(self, seconds: float) -> Service:
        """What one batch costs.

        Raises:
            FlatoutError: it cannot be measured.
        """
        self._probe_s = seconds
        return Service(**self._must({"do": "probe", "seconds": seconds}, OPEN_S))

    def get_ready(self, setting: Setting, *, on_sample: bool) -> None:
        """Make its copy of the store, or fill its cache; what cannot be made, a stretch tells."""
        self._ask({"do": "ready", "setting": setting.to_json(), "on_sample": on_sample}, OPEN_S)

    def run(self, setting: Setting, seconds: float, *, on_sample: bool) -> Slice | Failed:
        """One stretch of one setting."""
        request = {"do": "run", "setting": setting.to_json(), "seconds": seconds, "on_sample": on_sample}
        answer = self._ask(request, self._patience_s + PATIENCE * seconds)
        return Failed(answer["error"]) if "error" in answer else Slice(**answer["found"])

    def _must(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        answer = self._ask(request, limit_s)
        if "error" not in answer:
            return dict(answer["found"])
        kind = getattr(errors, answer.get("kind", ""), FlatoutError)
        raise (kind if kind is not errors.SampleError else FlatoutError)(answer["error"])

    def _ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        if self._child is None:
            if self._num_starts >= STARTS:
                return {"error": f"the process of the trials has died {STARTS} times"}
            self._start()
            if self._probe_s is not None and request["do"] == "run":  # a new one knows no costs yet
                self._ask({"do": "probe", "seconds": self._probe_s}, OPEN_S)
        if self._child is None:
            return {"error": "the process of the trials died while it was started again"}
        answer = self._child.ask(request, limit_s)
        if "died" in answer:
            self._stop()
            return {"error": answer["died"]}
        return answer

    def _start(self) -> None:
        self._num_starts += 1
        folder = Path(self._folder.name) / str(self._num_starts)
        folder.mkdir()
        document = {
            "config": self._config.model_dump(mode="json"),
            "cap_bytes": self._cap_bytes,
            "scratch": str(folder),
            "command": self._command,
        }
        (folder / "request.json").write_text(json.dumps(document), encoding="utf-8")
        self._child = _Child(folder, self._config.config_dir)

    def _stop(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None


class _Child:
    """The process itself, in a group of its own: Ctrl-C is for its parent, which ends it with its workers."""

    def __init__(self, folder: Path, config_dir: Path | None) -> None:
        places = [str(config_dir)] if config_dir is not None else []
        places += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        self._said = folder / "said"
        with open(self._said, "w") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flatout.doctor.tune.child", str(folder / "request.json")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([*places, str(Path.cwd())])},
                start_new_session=True,
            )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        assert self._process.stdout is not None
        reader = threading.Thread(target=_read, args=(self._process.stdout, self._answers), daemon=True)
        reader.start()

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Its answer; `died` with the reason if there is none."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._wait(limit_s)
        except MemoryError as error:
            return {"died": f"out of memory: {error}"}
        except (BrokenPipeError, queue.Empty):
            silent = f"no answer within {limit_s:.0f} s"
            return {"died": silent if self._process.poll() is None else self._end()}
        return dict(json.loads(line)) if line else {"died": self._end()}

    def _wait(self, limit_s: float) -> str:
        """The next line.

        Raises:
            MemoryError: hardly any memory is left.
            queue.Empty: it does not come.
        """
        end_s = time.monotonic() + limit_s
        while True:
            try:
                return self._answers.get(timeout=LOOK_S)
            except queue.Empty:
                if time.monotonic() >= end_s:
                    raise
            check_free(LAST_RESERVE)

    def stop(self) -> None:
        """End it and the workers it has started."""
        with suppress(OSError, AttributeError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _end(self) -> str:
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "the system killed the process: out of memory"
        last = self._said.read_text(errors="replace").strip().splitlines()[-1:]
        return f"the process ended with code {code}: {' '.join(last)}"


def _place_for_copies(config: Config) -> Path | None:
    """Beside a store that is larger than the memory, so that copies come from its disk; None: where temporary
    files are."""
    if config.preprocessed_data_dir is None:
        return None
    store = Path(config.preprocessed_data_dir)
    try:
        num_bytes = sum(path.stat().st_size for path in store.glob("*/*"))
    except OSError:
        return None
    is_large = num_bytes > describe_machine(look_for_gpu=False).free_bytes
    return store.parent if is_large and os.access(store.parent, os.W_OK) else None


def _read(pipe: IO[str], answers: queue.SimpleQueue[str]) -> None:
    """Lines as they come; an empty one at the end."""
    with suppress(ValueError, OSError):
        for line in pipe:
            answers.put(line)
    answers.put("")
