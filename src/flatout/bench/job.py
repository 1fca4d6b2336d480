"""One measurement in a process of its own: a job as JSON in, its figures as JSON out.

A fresh process each time: no contestant inherits warm caches, start methods or threads of another.
`python -m flatout.bench.job` reads the job from standard input.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from flatout.errors import FlatoutError

PEERS = ("h5py", "monai", "litdata")


@dataclass(frozen=True)
class Job:
    """What one process does."""

    what: str
    """prepare, decode, bare, scan, open, build, idle, or the name of a peer."""
    case: str = ""
    manifest: str = ""
    base: str = ""
    out: str = ""
    num_workers: int = 0
    is_safe: bool = True
    part: tuple[int, int] = (0, 1)
    """Which of how many parts of the work."""
    num_samples: int = 0


@dataclass(frozen=True)
class Outcome:
    """What it found, and how much of the machine others took meanwhile."""

    figures: dict[str, Any]
    others: float
    """CPU seconds of other processes a second and core; none of it is ours, all of it disturbs."""


def run(job: Job) -> Outcome:
    """Run the job in a fresh process.

    Raises:
        FlatoutError: it failed; with the end of what it said.
    """
    return run_together([job])[0]


def run_together(jobs: Sequence[Job]) -> list[Outcome]:
    """Run each job in a fresh process, all at the same time; whatever ends this ends them first.

    Raises:
        FlatoutError: one failed; with the end of what it said.
    """
    from flatout.bench.machine import CpuWatch

    watch = CpuWatch()
    with ExitStack() as ended:
        running = [ended.enter_context(_started(job)) for job in jobs]
        codes = [process.wait() for process, _, _ in running]
        others = watch.others()
        found = []
        for job, code, (_, answers, said) in zip(jobs, codes, running, strict=True):
            if code:
                raise FlatoutError(f"{job.what} of '{job.case}' failed: {_text(said).strip()[-2000:]}")
            found.append(Outcome(json.loads(_text(answers)), others))
        return found


@contextmanager
def _started(job: Job) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]]:
    """The job's process, what it answers and what it says; at the end nothing of it runs any more."""
    from flatout.store.process import worker_environment

    # The single process that the work is measured with has the workers' memory and thread settings.
    environment = worker_environment() if job.what in ("decode", "bare") else dict(os.environ)
    # The peers are installed with their bytecode; ours would be compiled anew in every process otherwise.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    # A group of its own: Ctrl-C is ours to handle, and its workers can be found when it is gone.
    group: dict[str, Any] = {} if os.name == "nt" else {"process_group": 0}
    with TemporaryFile() as asked, TemporaryFile() as answers, TemporaryFile() as said:
        asked.write(json.dumps(asdict(job)).encode())
        asked.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", "flatout.bench.job"],
            stdin=asked,
            stdout=answers,
            stderr=said,
            env=environment,
            **group,
        )
        try:
            yield process, answers, said
        finally:
            end_with_children(process)


def end_with_children(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started, and wait until they are gone: only then its files can be removed.

    Stopped first: what it starts between the look at its children and its end would write on.
    """
    import psutil

    family = []
    if process.poll() is None:
        with suppress(psutil.Error):
            leader = psutil.Process(process.pid)
            leader.suspend()
            family = leader.children(recursive=True)
            for member in [leader, *family]:
                with suppress(psutil.Error):
                    member.kill()
    if os.name != "nt":
        with suppress(OSError):  # nobody is left of its group
            os.killpg(process.pid, signal.SIGKILL)  # those, too, whose parent has ended before
    psutil.wait_procs(family, timeout=10.0)
    process.kill()
    process.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def main() -> None:
    """Do the job that standard input names; whatever libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = Job(**json.load(sys.stdin))
    work = plan(job)
    started = time.perf_counter()
    figures = work()
    answers.write(json.dumps({"seconds": time.perf_counter() - started, **figures}))
    answers.flush()


def plan(job: Job) -> Callable[[], dict[str, Any]]:
    """The work, with everything imported that it needs in this process; workers start inside it."""
    if job.what in PEERS:
        return _plan_peer(job)
    if job.what == "build":
        from flatout.bench.index import build_shards

        return lambda: build_shards(job)
    from flatout.bench import own

    tasks: dict[str, Callable[[Job], Callable[[], dict[str, Any]]]] = {
        "prepare": own.plan_prepare,
        "decode": own.plan_decode,
        "bare": own.plan_bare,
        "scan": own.plan_scan,
        "open": own.plan_open,
        "idle": own.plan_idle,
    }
    return tasks[job.what](job)


def _plan_peer(job: Job) -> Callable[[], dict[str, Any]]:
    from importlib import import_module

    from flatout.bench.cases import CASES

    case, items, out = CASES[job.case], read_items(job), Path(job.out)
    peer = import_module(f"flatout.bench.peer_{job.what}")
    case.load(items[0][1])  # the libraries that it imports, as flatout's own are imported by now
    out.mkdir()

    def fill() -> dict[str, Any]:
        peer.fill(case, items, out, job.num_workers)
        return {}

    return fill


def read_items(job: Job) -> list[tuple[str, str]]:
    """(key, whole path) of each row of the manifest."""
    rows = (line.split(",", 1) for line in Path(job.manifest).read_text().splitlines()[1:])
    return [(key, os.path.join(job.base, path)) for key, path in rows]


if __name__ == "__main__":
    main()
