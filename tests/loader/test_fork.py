"""Forks: of a process whose producers read, with loaders and iterators that the child inherits."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.loader.epochs import WAIT_S, epoch_keys, keys_of, loader_of, producers
from torch.utils.data import DataLoader

from flatout.loader.collate import Collate
from flatout.loader.dataset import FastDataset
from flatout.loader.loader import FastDataLoader
from flatout.loader.samples import SampleReader
from flatout.store import StoreReader, checks

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="forks"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


def in_child(function: Callable[[], Any]) -> Any:
    """What a function returns in a forked child: a bare fork, nothing of multiprocessing around it."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(source)
            with os.fdopen(sink, "wb") as pipe:
                pipe.write(pickle.dumps(function()))
            code = 0
        finally:
            os._exit(code)
    os.close(sink)
    try:
        with os.fdopen(source, "rb") as pipe:
            assert select.select([pipe], [], [], WAIT_S)[0], "the child says nothing"
            return pickle.loads(pipe.read())
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Reading:
    """A thread that reads epoch after epoch, so that producers are busy whenever somebody forks."""

    def __init__(self, store: StoreReader) -> None:
        self.loader = loader_of(store, 4, num_workers=2, prefetch_factor=1)
        self.epochs: list[list[int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.epochs.append(keys_of(self.loader))

    def __enter__(self) -> Reading:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_child_reads_while_the_parents_threads_do(store: StoreReader, num_workers: int) -> None:
    with Reading(store) as reading:
        loader = loader_of(store, num_workers=num_workers)
        for epoch in range(8):
            loader.set_epoch(epoch)
            assert in_child(lambda: keys_of(loader)) == epoch_keys(store, epoch)
    assert reading.epochs == [epoch_keys(store, epoch) for epoch in range(len(reading.epochs))]


def test_the_busy_loader_itself_works_in_the_child(store: StoreReader) -> None:
    with Reading(store) as reading:
        for _ in range(8):
            loader = reading.loader
            found = in_child(lambda: (loader.set_epoch(77), keys_of(loader)))  # noqa: B023
            assert found[1] == epoch_keys(store, 77)
    assert reading.epochs == [epoch_keys(store, epoch) for epoch in range(len(reading.epochs))]


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_an_inherited_iterator_goes_on_in_both(store: StoreReader, num_workers: int) -> None:
    loader = loader_of(store, 1, num_workers=num_workers, prefetch_factor=1)  # most is not made yet
    stream = iter(loader)
    first = keys_of(next(stream) for _ in range(4))
    wanted = epoch_keys(store, 0)
    assert first == wanted[: len(first)]
    rest, state = in_child(lambda: (keys_of(stream), loader.state_dict()))
    assert rest == wanted[len(first) :]
    assert state["samples"] == len(store)
    assert loader.state_dict()["samples"] == len(first)
    assert keys_of(stream) == rest
    loader.close()


def test_a_waiting_stream_is_not_the_childs(store: StoreReader) -> None:
    """After an epoch the producers stand ready for the next one; the child has to start its own."""
    loader = loader_of(store, num_workers=2)
    assert keys_of(loader) == epoch_keys(store, 0)
    assert in_child(lambda: keys_of(loader)) == epoch_keys(store, 1)
    assert keys_of(loader) == epoch_keys(store, 1)
    loader.close()


def test_a_child_has_threads_and_switch_interval_of_its_own(store: StoreReader) -> None:
    before = sys.getswitchinterval()
    loader = loader_of(store, num_workers=2)
    stream = iter(loader)
    next(stream)

    def look() -> tuple[int, int, float]:
        own = loader_of(store, num_workers=3)
        own_stream = iter(own)
        next(own_stream)
        num_threads = len(producers())
        del own_stream
        own.close()
        return num_threads, len(producers()), sys.getswitchinterval()

    num_threads, num_after, interval = in_child(look)
    assert (num_threads, num_after) == (3, 0)
    assert interval == pytest.approx(before)
    assert keys_of(stream) == epoch_keys(store, 0)[8:]
    loader.close()


EXIT = """
import os, sys
from flatout.loader.loader import FastDataLoader
loader = FastDataLoader(sys.argv[1], 4, num_workers=2)
stream = iter(loader)
next(stream)
for what in ("keep", "drop"):
    child = os.fork()
    if child == 0:
        next(stream)
        if what == "drop":
            del stream, loader
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(len(list(stream)) == len(loader) - 1)
"""


def test_parent_and_child_end_in_the_ordinary_way(store: StoreReader) -> None:
    """With all finalisers of the interpreter, in both, while iterators are in use."""
    command = [sys.executable, "-c", EXIT, str(store.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.stdout.split(), done.returncode, done.stderr) == (["7", "7", "True"], 0, "")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_dataset_workers_fork_while_producers_read(store: StoreReader, num_workers: int) -> None:
    dataset = FastDataset(store)
    dataset[0]  # open maps are inherited
    collate = Collate(store.fields)
    with Reading(store):
        for _ in range(2):
            workers = {"multiprocessing_context": "fork"} if num_workers else {}
            loader: Any = DataLoader(dataset, 16, num_workers=num_workers, collate_fn=collate, **workers)
            fast = FastDataLoader(store, 16, num_workers=1)
            for batch, wanted in zip(loader, fast, strict=True):
                assert batch.keys() == wanted.keys()
                assert all(torch.equal(batch[name], wanted[name]) for name in batch)
            fast.close()


def test_a_dataloader_reads_a_batch_with_one_call(store: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    read = SampleReader.read

    def counted(self: SampleReader, positions: Any) -> Any:
        sizes.append(len(positions))
        return read(self, positions)

    monkeypatch.setattr(SampleReader, "read", counted)
    loader: Any = DataLoader(FastDataset(store), 40, shuffle=True, collate_fn=Collate(store.fields))
    assert sorted(keys_of(loader)) == sorted(epoch_keys(store, 0))
    assert sizes == [40, 40, 23]


def test_a_fork_while_a_shards_tables_are_loaded(store: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that the loading thread holds may be missing in the child."""
    wanted, real, parent = store.shard(0).keys(), checks.tables_crc, os.getpid()
    is_inside, may_go_on = threading.Event(), threading.Event()

    def waiting(tables: Any) -> int:
        if os.getpid() == parent:
            is_inside.set()
            may_go_on.wait(WAIT_S)
        return real(tables)

    monkeypatch.setattr(checks, "tables_crc", waiting)
    thread = threading.Thread(target=StoreReader(store.folder).shard(0).keys)
    thread.start()
    try:
        assert is_inside.wait(WAIT_S)
        assert in_child(lambda: StoreReader(store.folder).shard(0).keys()) == wanted
    finally:
        may_go_on.set()
        thread.join()
