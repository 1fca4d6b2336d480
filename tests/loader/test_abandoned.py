"""A loader left in the middle of an epoch leaves no thread, file, map or memory behind."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.loader.epochs import WAIT_S, begun, loader_of, producers

from flatout.loader.fetch import ReadRule
from flatout.loader.lane import Lane
from flatout.loader.lane_belt import lane_kernels
from flatout.store import StoreReader

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def traces(folder: Path) -> tuple[int, int, int, float]:
    """What is there of the loaders of one store: threads, open files, maps; and the switch interval."""
    num_files = len(list(Path("/proc/self/fd").iterdir()))
    maps = Path("/proc/self/maps").read_text().count(str(folder))
    return len(producers()), num_files, maps, sys.getswitchinterval()


def collect(known: set[threading.Thread]) -> None:
    """Let everything go that nobody holds. A collection may happen to run in a producer, which then ends."""
    gc.collect()
    for thread in producers() - known:
        thread.join(WAIT_S)
    gc.collect()


@pytest.mark.parametrize(("io", "num_workers"), [("mmap", 0), ("mmap", 3), ("pread", 3)])
@pytest.mark.parametrize("what", ["iterator first", "loader first", "both", "cycle"])
def test_it_leaves_nothing_behind(store: StoreReader, io: str, num_workers: int, what: str) -> None:
    gc.collect()
    threads, before = producers(), traces(store.folder)
    loader = loader_of(str(store.folder), num_workers=num_workers, read=ReadRule(io=io))
    stream = iter(loader)
    for _ in range(3):
        next(stream)
    assert traces(store.folder) != before
    if what == "iterator first":
        del stream
        assert producers() == threads
        del loader
    elif what == "loader first":
        del loader
        next(stream)
        del stream
    elif what == "cycle":
        holder = [loader, stream]
        holder.append(holder)  # type: ignore[arg-type]
        del loader, stream, holder
    else:
        del loader, stream
    collect(threads)
    assert traces(store.folder) == before


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("what", ["iterator first", "both", "cycle"])
def test_a_lane_leaves_nothing_behind(plain_store: StoreReader, num_workers: int, what: str) -> None:
    lane_kernels()  # what is compiled stays
    gc.collect()
    threads, before = producers(), traces(plain_store.folder)
    loader = begun(StoreReader(plain_store.folder), num_workers=num_workers)
    stream: Any = iter(loader)
    for _ in range(3):
        next(stream)
    assert isinstance(stream._stream, Lane)
    if what == "iterator first":
        del stream
        assert producers() == threads
        del loader
    elif what == "cycle":
        holder = [loader, stream]
        holder.append(holder)
        del loader, stream, holder
    else:
        del loader, stream
    collect(threads)
    assert traces(plain_store.folder) == before


@pytest.mark.parametrize("num_workers", [0, 2])
def test_after_a_whole_epoch_the_producers_wait_until_it_is_dropped_or_closed(
    store: StoreReader, num_workers: int
) -> None:
    before = producers()
    loader = loader_of(store, num_workers=num_workers)
    for _ in loader:
        pass
    assert len(producers() - before) == num_workers
    loader.close()
    assert producers() == before
    for _ in loader:
        pass
    del loader
    assert producers() == before


def test_many_left_epochs_leave_one_set_of_threads(store: StoreReader) -> None:
    before = producers()
    loader = loader_of(store, num_workers=2)
    for _ in range(20):
        for _ in loader:
            break
        assert len(producers() - before) <= 2
    loader.close()


MEMORY = """
import gc, json, sys
from pathlib import Path
from flatout.loader import lane
from flatout.loader.loader import FastDataLoader

lane.LANE_BYTES, lane.all_major_faults = 0, lambda: 0

def anonymous_kb():
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

def make():
    return FastDataLoader(sys.argv[1], 16, shuffle=True, num_workers=2, prefetch_factor=1)

def whole(loader):
    held = []
    for batch in loader:
        held = [*held[-2:], batch]

def left(loader):
    for number, batch in enumerate(loader):
        if number == 2:
            break

def later(loader):
    whole(loader)
    left(loader)

loader = make()
cases = {
    "whole": (lambda: whole(loader), 50),
    "left": (lambda: left(loader), 30),
    "abandoned": (lambda: left(make()), 30),
    "abandoned later": (lambda: later(make()), 30),
}
grown_kb = {}
for name, (run, count) in cases.items():
    for _ in range(20):
        run()
    before = anonymous_kb()
    for _ in range(count):
        run()
    grown_kb[name] = anonymous_kb() - before
whole(loader)
kind = type(loader._spare._stream).__name__
num_bytes = sum(value.nbytes for batch in make() for value in batch.values())
print(json.dumps({"grown_kb": grown_kb, "epoch_kb": num_bytes // 1024, "kind": kind}))
"""


@pytest.mark.slow
def test_anonymous_memory_is_flat_over_fifty_epochs(any_store: StoreReader) -> None:
    """Whole epochs, epochs left early, and loaders abandoned; a leak of a sixth would show."""
    command = [sys.executable, "-c", MEMORY, str(any_store.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * WAIT_S, check=True)
    found = json.loads(done.stdout)
    assert found["kind"] == ("Prefetcher" if "series" in any_store.fields else "Lane")
    assert max(found["grown_kb"].values()) < 5 * found["epoch_kb"], found
