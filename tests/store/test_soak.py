"""Crash and restart, again and again in one process (R19): no more memory, files, threads or processes."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts by /proc")

ITEMS = """
import os, signal
import numpy as np

class Items:
    def __init__(self, version, crash_at, caller):
        self.version, self.crash_at, self.caller = version, crash_at, caller
    def __len__(self):
        return 48
    def __getitem__(self, index):
        if index == self.crash_at and os.getpid() != self.caller:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"x": np.full(20_000, index + self.version, np.float32), "y": index % 3}
"""

SOAK = """
import gc, json, os, sys, threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
import psutil
from soak_items import Items
from flatout.store import DataPreprocessor, StoreReader, compact, verify
from flatout.store import plan
from flatout.store.progress import Silent

plan.MIN_SHARDS, plan.MIN_SHARD_BYTES = 8, 1
num_cycles, every, store = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])

class Cut(Silent):
    left = 17
    def advance(self, rows):
        self.left -= rows
        if self.left < 0:
            raise KeyboardInterrupt

def cycle(number):
    has_workers = number % every == 0
    items = Items(number, 7 * number % 48 if has_workers else -1, os.getpid())
    settings = {"num_workers": 2 * has_workers, "transform_version": str(number), "max_bad_fraction": 0.5}
    make = lambda: DataPreprocessor.from_dataset(items, store, **settings)
    try:
        make().run(progress=Cut())
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("it was to be cut off")
    stats = make().run()
    assert stats.num_samples == 48 - has_workers, stats
    compact(store)
    assert verify(store)
    reader = StoreReader(store)
    assert all(reader.read(at)["x"][0] == float(key) + number for at, key in enumerate(reader.keys()))

def shared_memory():
    # Of the whole machine, without what others hold: Ray and others may run beside.
    names = set(os.listdir("/dev/shm"))
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    for pid in set(psutil.pids()) - own:
        with suppress(OSError):
            held = Path(f"/proc/{pid}/maps").read_text(errors="replace")
            names = {name for name in names if f"/dev/shm/{name}" not in held}
    return sorted(name for name in names if Path("/dev/shm", name).exists())

def counts():
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "anonymous_kb": int(status["RssAnon"].split()[0]),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "shared_memory": len(shared_memory()),
        "threads": threading.active_count(),
        "children": len(psutil.Process().children(recursive=True)),
        "store_files": sum(1 for path in store.rglob("*")),
    }

for number in range(num_cycles):
    cycle(number)
    print(json.dumps(counts()), flush=True)
"""


def soak(folder: Path, num_cycles: int, every: int) -> list[dict[str, int]]:
    (folder / "soak_items.py").write_text(ITEMS)
    (folder / "soak.py").write_text(SOAK)
    command = [sys.executable, "soak.py", str(num_cycles), str(every), str(folder / "store")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == num_cycles
    return found


def check_constant(found: list[dict[str, int]]) -> None:
    """Other programs may use shared memory, too: it must not grow with every cycle."""
    for name in ("descriptors", "threads", "children", "store_files"):
        assert len({counts[name] for counts in found}) == 1, [counts[name] for counts in found]
    blocks = [counts["shared_memory"] for counts in found]
    num_rises = sum(after > before for before, after in pairwise(blocks))
    assert num_rises <= max(1, len(found) // 10), blocks


def test_a_few_cycles(tmp_path: Path) -> None:
    check_constant(soak(tmp_path, 5, every=3)[1:])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_cycles(tmp_path: Path) -> None:
    found = soak(tmp_path, 100, every=2)
    check_constant(found[1:])
    found = found[40:]  # before, allocators still grow in steps; Python's own objects are constant from 10 on
    first, last = (
        statistics.median(counts["anonymous_kb"] for counts in part) for part in (found[:20], found[-20:])
    )
    assert last < 1.02 * first, f"anonymous memory grew from {first:,.0f} to {last:,.0f} kB"
