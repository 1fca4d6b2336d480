"""Decoders that crash, hang, leak or misbehave: only their own row is lost, and nothing is left running."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flatout.errors import PrepareError
from flatout.store import pool
from flatout.store.preprocessor import DataPreprocessor
from flatout.store.reader import StoreReader
from tests.store.crashing import Nursery, wait_until

DEEDS = '''
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
    "eat": eat,
}

def make(row):
    Path(f"seen-{row['id']}").touch()
    ACTS[row["deed"]]()
    return {"x": np.random.default_rng(int(row["id"])).random(32)}
'''


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with the transform in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "flatout_test_deeds.py").write_text(DEEDS)
    before = threading.active_count()
    yield tmp_path
    assert psutil.Process().children(recursive=True) == []
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
