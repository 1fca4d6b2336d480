"""One measurement in a process of its own: a job as JSON in, its figures as JSON out.

A fresh process each time: no contestant inherits warm caches, start methods or threads of another.
`python -m flatout.bench.job` reads the job from standard input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flatout.errors import FlatoutError

PEERS = ("h5py", "monai", "litdata")


@dataclass(frozen=True)
class Job:
    """What one process does."""

    what: str
    """prepare, decode, scan, open, build, idle, or the name of a peer."""
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
    from flatout.bench.machine import CpuWatch
    from flatout.store.process import worker_environment

    # The single process that the work is measured with has the workers' memory and thread settings.
    environment = worker_environment() if job.what == "decode" else dict(os.environ)
    # The peers are installed with their bytecode; ours would be compiled anew in every process otherwise.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    watch = CpuWatch()
    done = subprocess.run(
        [sys.executable, "-m", "flatout.bench.job"],
        input=json.dumps(asdict(job)),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise FlatoutError(f"{job.what} of '{job.case}' failed: {done.stderr.strip()[-2000:]}")
    return Outcome(json.loads(done.stdout), watch.others())


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
