"""What the failure tests share: small sources, prepares as processes that can be killed, and what must hold.

`Nursery` keeps one Python process with everything imported and forks a prepare from it on demand: a run of
200 rows then takes a tenth of a second, and hundreds of them can be killed in a minute.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from flatout.source import hash_file
from flatout.store.checks import hash_shard
from flatout.store.metadata import SHARD_FOLDER, is_store, load_metadata
from flatout.store.reader import StoreReader
from flatout.store.verification import verify

Model = dict[str, tuple[list[float], str]]
"""Key -> (values, class): what a store must hold."""

FAST = Path("/dev/shm")
"""Memory as a disk: the same calls, without the wait for a real one."""

NURSERY = """
import json, os, signal, sys
import flatout.store.preprocessor, flatout.store.pool, flatout.store.engine, flatout.store.verification
import flatout.source.array, flatout.source.numeric, flatout.source.value, h5py, numpy.random

flatout.store.plan.MIN_SHARDS = 16
flatout.store.plan.MIN_SHARD_BYTES = 1

def prepare(job):
    os.setsid()
    os.chdir(job["cwd"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if job["stopped"]:
        os.kill(os.getpid(), signal.SIGSTOP)
    preprocessor = flatout.store.preprocessor.DataPreprocessor(job["settings"])
    try:
        preprocessor.run(**job["options"])
    except flatout.errors.FlatoutError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 1
    return 0

print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    if "wait" in job:
        print(os.waitstatus_to_exitcode(os.waitpid(job["wait"], 0)[1]), flush=True)
        continue
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            code = prepare(job)
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    print(pid, flush=True)
"""


@dataclass
class Run:
    """A prepare under way."""

    nursery: Nursery
    pid: int
    log: Path
    code: int | None = None
    processes: list[psutil.Process] = field(default_factory=list)

    def wait(self) -> int:
        """The exit code; negative: the signal that ended it."""
        if self.code is None:
            self.code = int(self.nursery.say({"wait": self.pid}))
        return self.code

    def kill(self, *, everything: bool) -> int:
        """SIGKILL, to the prepare alone (its workers have to notice) or to all of it at once."""
        try:
            os.kill(self.pid, signal.SIGSTOP)
            self.processes = psutil.Process(self.pid).children(recursive=True)
            os.kill(self.pid, signal.SIGKILL)
        except (ProcessLookupError, psutil.NoSuchProcess):
            return self.wait()
        for process in self.processes if everything else ():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        return self.wait()

    def text(self) -> str:
        return self.log.read_text()


class Nursery:
    """A process with flatout imported, from which prepares are forked. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
        )
        assert self._line() == "ready"

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def start(self, settings: Mapping[str, Any], *, stopped: bool = False, **options: Any) -> Run:
        """Fork a prepare with these settings; `stopped`: it waits for SIGCONT before it does anything."""
        self._count += 1
        log = self._folder / f"run-{self._count:04d}.log"
        job = {
            "settings": settings,
            "options": options,
            "log": str(log),
            "stopped": stopped,
            "cwd": str(Path.cwd()),
        }
        return Run(self, int(self.say(job)), log)

    def run(self, settings: Mapping[str, Any], **options: Any) -> Run:
        """Fork a prepare and wait for its end."""
        run = self.start(settings, **options)
        run.wait()
        return run

    def finish(self, settings: Mapping[str, Any], **options: Any) -> None:
        """A prepare that must succeed."""
        run = self.run(settings, **options)
        assert run.code == 0, f"exit {run.code}: {run.text()}"

    def say(self, message: Mapping[str, Any]) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@dataclass
class Source:
    """A folder of npy files with a CSV, and what a store made of it must hold."""

    folder: Path
    model: Model = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)
    """Rows whose file is broken."""

    @property
    def manifest(self) -> Path:
        return self.folder / "manifest.csv"

    def add(self, numbers: Iterable[int], seed: int = 0) -> None:
        """New or changed rows; the files are an hour old, so that their times count."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for number in numbers:
            key = f"s{number:04d}.npy"
            values = np.random.default_rng([number, seed]).random(16, dtype=np.float32)
            np.save(self.folder / key, values)
            age(self.folder / key, seed)
            self.model[key] = values.tolist(), "abc"[(number + seed) % 3]
        self.write()

    def spoil(self, numbers: Iterable[int]) -> None:
        """Rows that can never be decoded."""
        for number in numbers:
            key = f"b{number:04d}.npy"
            (self.folder / key).write_bytes(b"\x93NUMPY, but no further")
            age(self.folder / key, 0)
            self.bad.append(key)
        self.write()

    def remove(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            del self.model[f"s{number:04d}.npy"]
        self.write()

    def write(self) -> None:
        rows = [f"{key},{label}" for key, (_, label) in sorted(self.model.items())]
        # Bad rows stand among the good ones, not at the end, where no shard would be made after them.
        for at, key in enumerate(self.bad):
            rows.insert((at * 37 + 20) % (len(rows) + 1), f"{key},a")
        self.manifest.write_text("\n".join(["path,label", *rows]) + "\n")

    def settings(self, store: Path, **more: Any) -> dict[str, Any]:
        return {
            "manifest": str(self.manifest),
            "preprocessed_data_dir": str(store),
            "fields": {
                "x": {"kind": "array", "column": "path"},
                "label": {"kind": "label", "classes": ["a", "b", "c"]},
            },
            "num_workers": 0,
            **more,
        }


def age(path: Path, seed: int, seconds: int = 3600) -> None:
    """Give a file a modification time long ago that depends on the seed."""
    when = int(time.time()) // 86400 * 86400 - seconds * (2 + seed)
    os.utime(path, (when, when))


def shard_hashes(store: Path) -> dict[str, str]:
    """Name -> blake3 of every file in the shard folder."""
    return {path.name: hash_file(path) for path in sorted((store / SHARD_FOLDER).iterdir())}


def contents(store: Path) -> Model:
    """What a store holds, as a model."""
    reader = StoreReader(store)
    found: Model = {}
    for position, key in enumerate(reader.keys()):
        assert key not in found, f"{key} stands twice"
        sample = reader.read(position)
        classes = reader.fields["label"].classes or ()
        found[key] = sample["x"].tolist(), classes[int(sample["label"])]
    return found


def check_cut_off(store: Path, *models: Model) -> None:
    """What must hold after a kill: finished shards are whole, and a version that was committed still is."""
    if not store.exists():
        return
    for shard in _noted_shards(store):
        path = store / SHARD_FOLDER / shard["file"]
        assert path.stat().st_size == shard["size"]
        assert hash_shard(path) == shard["xxh3"]
    if is_store(store):
        report = verify(store)
        assert report, report.damage
        assert contents(store) in models


def _noted_shards(store: Path) -> list[dict[str, Any]]:
    """Every shard that the journal's whole lines name."""
    path = store / "journal.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    head, *receipts = [json.loads(line) for line in lines] or [{"adopted": []}]
    return [*head["adopted"], *(shard for receipt in receipts for shard in receipt["shards"])]


def check_finished(store: Path, model: Model, bad: Iterable[str] = ()) -> None:
    """What must hold after a prepare has succeeded: every sample, nothing else, nothing left over."""
    report = verify(store)
    assert report, report.damage
    assert contents(store) == model
    quarantined = [json.loads(line)["key"] for line in (store / "quarantine.jsonl").read_text().splitlines()]
    assert quarantined == sorted(bad)
    assert left_over(store) == []
    assert load_metadata(store).num_bad == len(quarantined)


def left_over(store: Path) -> list[str]:
    """Files that only a prepare under way may have."""
    patterns = ("**/*.tmp", "journal.jsonl", "plan-*.parquet", "prepare.lock", "pending.json")
    return [str(path.relative_to(store)) for pattern in patterns for path in store.glob(pattern)]


def copied(store: Path, to: Path) -> Path:
    """A copy of a store with its files' times."""
    shutil.copytree(store, to)
    return to


def fast_folder() -> Path | None:
    """Where the stores of many runs go: memory if there is enough of it, else (None) the usual place."""
    has_room = FAST.is_dir() and os.access(FAST, os.W_OK) and shutil.disk_usage(FAST).free > 256 << 20
    return FAST if has_room else None


CALLS = (
    "write,writev,pwrite64,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,ftruncate,"
    "openat,link,linkat,fallocate"
)
"""System calls by which a prepare changes what is on the disk."""


@cache
def can_trace() -> bool:
    """Whether strace is here and may look into our processes."""
    if shutil.which("strace") is None:
        return False
    return (
        subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False).returncode == 0
    )


def traced(
    nursery: Nursery,
    settings: Mapping[str, Any],
    log: Path,
    inject: str | None = None,
    *,
    with_data: bool = False,
) -> Run:
    """A prepare under strace, from its first step to its end; `inject` makes one of its calls fail.

    `with_data` keeps every byte that is written, and all names, in hexadecimal.
    """
    run = nursery.start(settings, stopped=True)
    status = Path(f"/proc/{run.pid}/status")
    assert wait_until(lambda: "T (stopped)" in status.read_text())
    command = [
        "strace",
        "-f",
        "-y",
        "-qq",
        *(("-xx", "-s", str(1 << 24)) if with_data else ("-s", "0")),
        "-p",
        str(run.pid),
        "-o",
        str(log),
        "-e",
        f"trace={CALLS}",
    ]
    tracer = subprocess.Popen([*command, *(["-e", f"inject={inject}"] if inject else [])])
    assert wait_until(lambda: "TracerPid:\t0" not in status.read_text())
    os.kill(run.pid, signal.SIGCONT)
    run.wait()
    tracer.wait()
    return run


def points(log: Path, store: Path) -> list[tuple[str, int]]:
    """(call, how often it was made up to there) of every change to a store that a trace shows."""
    counts: Counter[str] = Counter()
    found = []
    lines = log.read_text().splitlines()
    main = lines[0].split()[0]
    for line in lines:
        thread, call = line.split(maxsplit=1)
        name = call.partition("(")[0]
        if thread != main or name not in CALLS.split(","):
            continue
        counts[name] += 1
        if str(store) in call and (name != "openat" or "O_CREAT" in call):
            found.append((name, counts[name]))
    return found


class TinyUpdate:
    """A store of a few samples and a change to its source, small enough to fail every system call in turn."""

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        self.source = Source(folder / "source")
        self.source.add(range(3))
        self.source.spoil(range(1))
        self.before = folder / "before"
        nursery.finish(self.settings(self.before))
        self._old_model = dict(self.source.model)
        self.source.add([1], seed=1)
        self.source.add([7])
        self.source.remove([2])
        self._after = copied(self.before, folder / "after")
        self.trace = folder / "trace"
        if can_trace():
            assert traced(nursery, self.settings(self._after), self.trace).code == 0
            self.points = points(self.trace, self._after)
        else:
            nursery.finish(self.settings(self._after))

    def settings(self, store: Path, **more: Any) -> dict[str, Any]:
        return self.source.settings(store, max_bad_fraction=0.5, **more)

    def check_cut_off(self, store: Path) -> None:
        check_cut_off(store, self._old_model, self.source.model)

    def check_finished(self, store: Path) -> None:
        check_finished(store, self.source.model, self.source.bad)
        assert shard_hashes(store) == shard_hashes(self._after)


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Look every few milliseconds; whether it came true in time."""
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.005)
    return met
