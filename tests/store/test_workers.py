"""Decoders that crash, hang, leak or misbehave: only their own row is lost, and nothing is left running."""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.store.crashing import Nursery, wait_until

from flatout.errors import PrepareError
from flatout.store import pool
from flatout.store.preprocessor import DataPreprocessor
from flatout.store.process import WorkerProcess
from flatout.store.progress import Silent
from flatout.store.reader import StoreReader

DEEDS = """
import ctypes, os, re, signal, subprocess, sys, time
from pathlib import Path
import numpy as np

class Unsendable(Exception):
    def __init__(self, one, two):
        super().__init__(one)
        self.held = open(os.devnull)

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")

def fork_and_crash():
    if os.fork() == 0:
        time.sleep(1000)
    ctypes.string_at(0)

def hang_with_a_program():
    program = subprocess.Popen(["sleep", "1000"])
    Path("program.pid").write_text(str(program.pid))
    time.sleep(1000)

def die_once():
    if not Path("died").exists():
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)

POISON = []

def stumble():
    if POISON:
        ctypes.string_at(0)

def raise_(error):
    raise error

def eat():
    hoard = []
    while True:
        hoard.append(np.ones(8 << 20))

ACTS = {
    "good": lambda: None,
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "exit": lambda: os._exit(7),
    "close": lambda: os.closerange(3, 256),
    "fork": fork_and_crash,
    "sysexit": lambda: sys.exit("enough"),
    "interrupt": lambda: raise_(KeyboardInterrupt()),
    "memory": lambda: raise_(MemoryError()),
    "unsendable": lambda: raise_(Unsendable(1, 2)),
    "mute": lambda: raise_(Mute()),
    "surrogate": lambda: raise_(ValueError("bad \\udcff name\\nsecond line")),
    "long": lambda: raise_(ValueError("x" * 1_000_000)),
    "print": lambda: print("x" * 1000),
    "hang": lambda: time.sleep(1000),
    "spin": lambda: re.match("(a+)+$", "a" * 60 + "b"),
    "program": hang_with_a_program,
    "once": die_once,
    "slow": lambda: time.sleep(0.1),
    "poison": lambda: POISON.append(1),
    "victim": stumble,
    "eat": eat,
}

def make(row):
    Path(f"seen-{row['id']}").touch()
    ACTS[row["deed"]]()
    return {"x": np.random.default_rng(int(row["id"])).random(32)}
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with the transform in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "flatout_test_deeds.py").write_text(DEEDS)
    before = threading.active_count()
    others = set(psutil.Process().children(recursive=True))  # torch's and multiprocessing's own, of other tests
    yield tmp_path
    assert set(psutil.Process().children(recursive=True)) <= others
    assert threading.active_count() == before
    assert list((tmp_path / "temporary").iterdir()) == []


def settings(work: Path, deeds: list[str], store: str = "store", **more: Any) -> dict[str, Any]:
    """The config of a run over rows with these deeds."""
    lines = [f"{number},{deed}" for number, deed in enumerate(deeds)]
    (work / "rows.csv").write_text("\n".join(["id,deed", *lines]) + "\n")
    return {
        "manifest": str(work / "rows.csv"),
        "preprocessed_data_dir": str(work / store),
        "transform": "flatout_test_deeds:make",
        "transform_version": "1",
        "max_bad_fraction": 1.0,
        "num_workers": 2,
        **more,
    }


def samples(store: Path) -> dict[str, bytes]:
    reader = StoreReader(store)
    return {key: reader.read(at)["x"].tobytes() for at, key in enumerate(reader.keys())}


def quarantine(store: Path) -> dict[str, tuple[str, str]]:
    rows = [json.loads(line) for line in (store / "quarantine.jsonl").read_text().split("\n") if line]
    return {row["key"]: (row["stage"], row["error"]) for row in rows}


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Plans with this many shards at the most."""

    def choose(count: int) -> None:
        monkeypatch.setattr("flatout.store.plan.MIN_SHARDS", count)
        monkeypatch.setattr("flatout.store.plan.MIN_SHARD_BYTES", 1)

    return choose


def good_samples(work: Path, num_rows: int) -> dict[str, bytes]:
    """What a run without any bad row gives."""
    DataPreprocessor(settings(work, ["good"] * num_rows, store="reference", num_workers=0)).run()
    return samples(work / "reference")


CRASHES = {
    "segfault": "signal 11",
    "abort": "signal 6",
    "exit": "code 7",
    "close": "",
    "fork": "signal 11",
}
FAILURES = {
    "sysexit": ("transform", "SystemExit: enough"),
    "interrupt": ("transform", "KeyboardInterrupt"),
    "memory": ("decode", "num_workers"),
    "unsendable": ("transform", "Unsendable: 1"),
    "mute": ("transform", "Mute"),
    "surrogate": ("transform", r"ValueError: bad \udcff name second line"),
    "long": ("transform", "xxx..."),
}


def test_only_the_rows_that_crash_are_lost(work: Path, small_shards: Callable[[int], None]) -> None:
    small_shards(3)
    deeds = ["good"] * 60
    for at, deed in enumerate([*CRASHES, *FAILURES, "print"]):
        deeds[at * 4 + 9] = deed
    deeds[11] = "segfault"  # two in one shard, with a good row between them
    expected = good_samples(work, len(deeds))

    stats = DataPreprocessor(settings(work, deeds)).run()

    found = quarantine(work / "store")
    bad = {str(at): deed for at, deed in enumerate(deeds) if deed not in ("good", "print")}
    assert samples(work / "store") == {key: data for key, data in expected.items() if key not in bad}
    assert found.keys() == bad.keys()
    assert stats.failed == len(bad)
    for key, (stage, reason) in found.items():
        wanted_stage, wanted = FAILURES.get(bad[key], ("worker", CRASHES.get(bad[key], "")))
        assert stage == wanted_stage
        assert wanted in reason
        assert len(reason) < 600
    log = (work / "store" / "preprocessing.log").read_text()
    assert all(f"quarantined {key} " in log for key in bad)


def test_rows_that_hang_are_lost(work: Path, small_shards: Callable[[int], None]) -> None:
    small_shards(2)
    deeds = ["slow"] * 24
    deeds[9], deeds[10], deeds[20] = "hang", "program", "spin"
    expected = good_samples(work, len(deeds))

    # The slow rows of one request take longer together than one row may.
    DataPreprocessor(settings(work, deeds, decode_timeout_s=1, num_workers=2)).run()

    found = quarantine(work / "store")
    assert found == dict.fromkeys(["10", "20", "9"], ("worker", "no result after 1 s (decode_timeout_s)"))
    assert samples(work / "store") == {key: data for key, data in expected.items() if key not in found}
    program = int((work / "program.pid").read_text())
    assert wait_until(lambda: not psutil.pid_exists(program))


def is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def test_a_row_that_eats_memory_is_lost(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Half a gigabyte for each, less what is spared; to whoever watches, memory is short from the start.
    monkeypatch.setattr(pool, "free_memory_bytes", lambda: (1 << 30) * is_main_thread())
    deeds = ["good"] * 10 + ["eat"] + ["good"] * 10

    DataPreprocessor(settings(work, deeds, num_workers=2)).run()

    found = quarantine(work / "store")
    assert list(found) == ["10"]
    assert found["10"][0] == "worker"
    assert "bytes of memory" in found["10"][1]
    assert "num_workers" in found["10"][1]
    assert "preprocess_batch_size" in found["10"][1]
    assert len(samples(work / "store")) == 20


def test_nobody_is_killed_for_memory_while_there_is_enough(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Shares of a few hundred bytes, which every process exceeds.
    monkeypatch.setattr(pool, "free_memory_bytes", lambda: 1000 if is_main_thread() else 1 << 40)

    stats = DataPreprocessor(settings(work, ["slow"] * 8, num_workers=2)).run()

    assert (stats.num_samples, stats.failed) == (8, 0)


def test_a_row_that_kills_a_worker_once_is_kept(work: Path, small_shards: Callable[[int], None]) -> None:
    small_shards(1)
    deeds = ["good"] * 10 + ["once"] + ["good"] * 10
    expected = good_samples(work, len(deeds))
    (work / "died").unlink(missing_ok=True)

    stats = DataPreprocessor(settings(work, deeds)).run()

    assert (work / "died").exists()
    assert stats.failed == 0
    assert samples(work / "store") == expected


def test_rows_that_crash_only_after_others(work: Path, small_shards: Callable[[int], None]) -> None:
    """Nobody can tell whose fault it is; the one that it shows at is lost, and the run ends."""
    small_shards(1)
    deeds = ["good"] * 20
    deeds[3], deeds[7] = "poison", "victim"

    DataPreprocessor(settings(work, deeds, num_workers=1)).run()

    reason = "the decoder crashed (signal 11); only after other rows of its shard, not alone"
    assert quarantine(work / "store") == {"7": ("worker", reason)}
    assert len(samples(work / "store")) == 19


def test_workers_killed_from_outside_cost_nothing(work: Path, small_shards: Callable[[int], None]) -> None:
    small_shards(8)
    expected = good_samples(work, 32)
    for mark in work.glob("seen-*"):
        mark.unlink()
    killed = []

    def kill_some() -> None:
        """One worker each time that a few more rows have been begun."""
        for wanted in range(2, 28, 6):
            wait_until(lambda wanted=wanted: len(list(work.glob("seen-*"))) >= wanted)
            found = [p for p in psutil.Process().children() if "flatout.store.worker" in p.cmdline()]
            for process in found[:1]:
                process.kill()
                killed.append(process.pid)

    killer = threading.Thread(target=kill_some)
    killer.start()
    stats = DataPreprocessor(settings(work, ["slow"] * 32)).run()
    killer.join()

    assert len(killed) >= 3
    assert stats.failed == 0
    assert samples(work / "store") == expected
    log = (work / "store" / "preprocessing.log").read_text()
    assert "quarantined" not in log


def test_workers_that_do_not_start_are_an_error(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    with pytest.raises(PrepareError, match="do not start"):
        DataPreprocessor(settings(work, ["good"] * 4)).run()


def test_time_in_which_nobody_watched_does_not_count(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was suspended must not come back to find its rows late."""
    process = WorkerProcess([], timeout_s=60.0, max_bytes=1 << 40)
    try:
        process._progress.begin(3)
        now = time.monotonic_ns()
        for _ in range(50):
            now += 3600 * 10**9
            monkeypatch.setattr(time, "monotonic_ns", lambda now=now: now)
            process.watch()
        assert process._killed_for is None
        for _ in range(20):
            now += 3600 * 10**9
            monkeypatch.setattr(time, "monotonic_ns", lambda now=now: now)
            process.watch()
        assert wait_until(lambda: process._process.poll() is not None)
    finally:
        process.close()


@pytest.mark.parametrize("deed", ["hang", "spin"])
def test_workers_end_with_their_parent(work: Path, deed: str) -> None:
    """Even while a decoder hangs, and even if it holds the interpreter's lock."""
    with Nursery(work) as nursery:
        run = nursery.start(settings(work, ["good"] * 9 + [deed], num_workers=2))
        assert wait_until(lambda: (work / "seen-9").exists())
        run.kill(everything=False)
        assert len(run.processes) >= 2
        assert wait_until(lambda: not any(process.is_running() for process in run.processes), seconds=5)
        assert (work / "store" / "prepare.lock").exists()

        nursery.finish(settings(work, ["good"] * 9, num_workers=0))

    assert len(samples(work / "store")) == 9
    assert not (work / "store" / "prepare.lock").exists()


GATE = """
import time
from pathlib import Path
import numpy as np

def make(row):
    while row["id"] == "20" and not Path("gate").exists():
        time.sleep(0.01)
    return {"x": np.zeros(4)}
"""


def test_rows_of_a_request_are_told_before_all_of_it_is_made(work: Path) -> None:
    """Row 20 waits for somebody who has heard that rows before it are done, all in one request."""
    (work / "flatout_test_gate.py").write_text(GATE)
    told: list[int] = []

    class Watch(Silent):
        def advance(self, rows: int) -> None:
            told.append(rows)
            (work / "gate").touch()

    changes: dict[str, Any] = {"transform": "flatout_test_gate:make", "num_workers": 1}
    changes |= {"preprocess_batch_size": 64, "decode_timeout_s": 20}
    DataPreprocessor(settings(work, ["good"] * 40, **changes)).run(progress=Watch())
    assert told[0] <= 20
    assert sum(told) == 40
    assert quarantine(work / "store") == {}


def count_faults(num_shards: int) -> int:
    """Pages that shards of 500 samples of 164 KB, each made when the one before is gone, have brought in."""
    import resource

    import numpy as np

    faults = 0
    for _ in range(num_shards):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        shard = [np.ones(40960, np.float32) for _ in range(500)]
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        del shard
    return faults


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")
def test_the_memory_of_a_shard_is_kept_for_the_next() -> None:
    worker = WorkerProcess([], timeout_s=60.0, max_bytes=1 << 40)
    try:
        last = worker.ask("run", count_faults, 3)
    finally:
        worker.close()
    assert last < 1000, "80 MB are 20,000 pages"
