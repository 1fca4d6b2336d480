"""A cold split that fits into memory is announced whole beside its first batches; nothing else is."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.store.crashing import wait_until

from flatout.bench.load_cold import drop_cache
from flatout.bench.load_data import write_store
from flatout.loader import kept, lane, sweep
from flatout.loader.announce import QUIET_BATCHES
from flatout.loader.fetch import ReadRule
from flatout.loader.loader import FastDataLoader
from flatout.loader.machine import describe_machine
from flatout.loader.maker import BatchMaker
from flatout.loader.sweep import Extent, Sweep, extents_of, is_cold
from flatout.store import StoreReader
from flatout.store.reader import SHARDS_AHEAD
from flatout.types import FieldSpec

NUM_ROWS, ROW_BYTES = 512, 16_000

pytestmark = pytest.mark.skipif(not Sweep.can_look(), reason="this system does not tell what is in memory")


@pytest.fixture
def cold_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreReader:
    """Four shards of 2 MB, with nothing of them in memory, and large enough to be swept."""
    monkeypatch.setattr(kept, "MIN_BYTES", 1)
    fields = FieldSpec("image", "array", "uint8", (ROW_BYTES,)), FieldSpec("label", "label", "int64", ())
    rows = np.random.default_rng(0).integers(0, 256, (NUM_ROWS, ROW_BYTES), np.uint8)
    samples = ({"image": row, "label": np.asarray(number)} for number, row in enumerate(rows))
    folder = write_store(tmp_path / "store", fields, samples, NUM_ROWS // 4)
    gc.collect()
    drop_cache(folder)
    store = StoreReader(folder)
    if not is_cold(large_extents(store)):
        pytest.skip("this file system keeps its pages")
    return store


def large_extents(store: StoreReader) -> list[Extent]:
    """Those that opening a shard does not touch."""
    return list(extents_of(store, store.numbers["shard"], ["image"]))


def missing(extents: list[Extent]) -> list[tuple[Path, int]]:
    """Pages of these that are not in memory."""
    pages = [(extent.path, at) for extent in extents for at in range(extent.start, extent.stop, 4096)]
    return [page for page in pages if sweep.is_missing(*page)]


def run_here(store: StoreReader, fields: tuple[str, ...] = ("image", "label"), num_bytes: int = 1) -> None:
    """A whole sweep, in this thread."""
    shards = store.numbers["shard"]
    sweep._sweep(store, shards, fields, num_bytes, threading.Event(), threading.Event())


def sweeps() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "flatout-sweep"}


def test_all_of_a_cold_split_comes_into_memory(cold_store: StoreReader) -> None:
    extents = large_extents(cold_store)
    assert missing(extents)
    running = Sweep(cold_store, cold_store.numbers["shard"], cold_store.fields, num_bytes=1)
    assert wait_until(lambda: not running._thread.is_alive())
    assert not running.is_under_way
    assert wait_until(lambda: not missing(extents))


def test_a_loader_begins_it_once(cold_store: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[str, ...]] = []
    whole = sweep._sweep

    def counted(store: StoreReader, shards: np.ndarray, fields: tuple[str, ...], *others: Any) -> None:
        begun.append(fields)
        whole(store, shards, fields, *others)

    monkeypatch.setattr(sweep, "_sweep", counted)
    loader = FastDataLoader(cold_store, 4, shuffle=True, read=ReadRule(fields=("image", "label")))
    for _ in range(3):
        assert sum(len(batch["label"]) for batch in loader) == len(loader.dataset)
        assert wait_until(lambda: not sweeps())
        loader.close()  # the next epoch has another stream
    assert begun == [("image", "label")]


def test_no_thread_where_nobody_makes_batches_ahead(cold_store: StoreReader) -> None:
    before = sweeps()
    loader = FastDataLoader(cold_store, 4, num_workers=0)
    next(iter(loader))
    assert loader._kept._sweep is None
    assert sweeps() == before


def test_small_splits_are_not_swept(cold_store: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MIN_BYTES", 1 << 40)
    loader = FastDataLoader(cold_store, 4)
    next(iter(loader))
    assert loader._kept._sweep is None


def test_what_does_not_fit_is_left(cold_store: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = replace(describe_machine(look_for_gpu=False), free_bytes=1 << 10)
    monkeypatch.setattr(sweep, "describe_machine", lambda **options: machine)
    announced: list[Extent] = []
    monkeypatch.setattr(sweep, "_announce", lambda extent, stop: announced.append(extent))
    run_here(cold_store)
    assert announced == []


def test_what_is_in_memory_is_left(cold_store: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in {extent.path for extent in large_extents(cold_store)}:
        path.read_bytes()
    announced: list[Extent] = []
    monkeypatch.setattr(sweep, "_announce", lambda extent, stop: announced.append(extent))
    run_here(cold_store, ("image",))
    assert announced == []


def test_shards_with_few_rows_of_the_split_are_left(cold_store: StoreReader) -> None:
    shards = cold_store.numbers["shard"]
    sizes = np.bincount(shards)
    chosen = int(np.argmax(sizes))
    few = np.flatnonzero(shards == chosen)[: (sizes[chosen] - 1) // 2]
    rest = np.flatnonzero(shards != chosen)
    paths = {extent.path for extent in extents_of(cold_store, shards[[*few, *rest]], cold_store.fields)}
    assert cold_store.shard(chosen).path not in paths
    assert len(paths) == len(sizes) - 1


def test_the_batches_are_the_same(cold_store: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    swept = [batch["image"].clone() for batch in FastDataLoader(cold_store, 4, shuffle=True, seed=3)]
    monkeypatch.setattr(kept, "MIN_BYTES", 1 << 40)
    plain = [batch["image"].clone() for batch in FastDataLoader(cold_store, 4, shuffle=True, seed=3)]
    assert len(swept) == len(plain) > 1
    assert all((one == other).all() for one, other in zip(swept, plain, strict=True))


@pytest.mark.parametrize("how", ["close", "drop"])
def test_it_ends_with_its_loader(cold_store: StoreReader, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a file that would take for ever."""
    announced = threading.Event()
    monkeypatch.setattr(sweep, "extents_of", lambda *of: [endless])
    endless = Extent(large_extents(cold_store)[0].path, 0, 1 << 60)
    monkeypatch.setattr(sweep, "FREE_SHARE", 1 << 60)
    monkeypatch.setattr(sweep, "is_cold", lambda extents: announced.set() or True)
    before = sweeps()
    loader = FastDataLoader(cold_store, 4)
    stream = iter(loader)
    next(stream)
    assert announced.wait(10)
    assert len(sweeps() - before) == 1
    if how == "close":
        loader.close()
    else:
        del loader, stream
        gc.collect()
    assert sweeps() == before


def test_a_file_that_is_gone_is_left_to_whoever_reads_it(
    cold_store: StoreReader, caplog: pytest.LogCaptureFixture
) -> None:
    large_extents(cold_store)[0].path.unlink()
    with caplog.at_level("DEBUG", "flatout.loader.sweep"):
        run_here(cold_store)
    assert "not all of the split could be announced" in caplog.text


def test_what_cannot_fit_is_not_even_opened(cold_store: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = replace(describe_machine(look_for_gpu=False), free_bytes=1 << 10)
    monkeypatch.setattr(sweep, "describe_machine", lambda **options: machine)
    opened: list[int] = []
    monkeypatch.setattr(cold_store, "shard", opened.append)
    run_here(cold_store, num_bytes=1 << 30)
    assert opened == []


def test_a_field_that_is_loaded_does_not_hide_a_cold_one(
    cold_store: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The labels of every shard have been read, the images have not."""
    monkeypatch.setattr(sweep, "NUM_LOOKS", 4)
    extents = list(extents_of(cold_store, cold_store.numbers["shard"], ["label", "image"]))
    assert len(extents) == 8
    for extent in extents[::2]:
        descriptor = os.open(extent.path, os.O_RDONLY)
        os.preadv(descriptor, [bytearray(extent.size)], extent.start)
        os.close(descriptor)
    assert is_cold(extents)


def test_nothing_is_cold_of_nothing() -> None:
    assert not is_cold([])


def test_rows_are_announced_as_long_as_it_is_under_way(
    cold_store: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is announced faults no page, so that the split seems warm: batches waited for half a second."""

    class Endless(Sweep):
        is_under_way = True

        def __init__(self, *_: Any) -> None:
            pass

        def close(self) -> bool:
            return True

    announced: list[int] = []
    announce = BatchMaker._announce

    def noted(self: BatchMaker, first: int, stop: int) -> None:
        announced.append(first)
        announce(self, first, stop)

    monkeypatch.setattr(kept, "Sweep", Endless)
    monkeypatch.setattr(BatchMaker, "_announce", noted)
    monkeypatch.setattr(lane, "LANE_BYTES", 1 << 40)  # lanes announce nothing
    monkeypatch.setattr(sys.modules["flatout.loader.announce"], "major_faults", lambda: 0)
    loader = FastDataLoader(cold_store, 2, shuffle=True, num_workers=1)
    list(loader)
    loader.close()
    assert max(announced) >= 4 * QUIET_BATCHES


def test_it_ends_while_it_opens_shards(cold_store: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    extent, seen = large_extents(cold_store)[0], threading.Event()

    def endless(*of: object) -> Iterator[Extent]:
        while True:
            seen.set()
            yield extent
            time.sleep(0.01)

    monkeypatch.setattr(sweep, "extents_of", endless)
    running = Sweep(cold_store, cold_store.numbers["shard"], cold_store.fields, num_bytes=1)
    assert seen.wait(10)
    assert not running.is_under_way  # nothing is announced yet
    assert not running.close()
    assert not running._thread.is_alive()


@pytest.mark.parametrize("is_ragged", [False, True])
def test_few_shards_are_opened_once_it_is_to_end(
    cold_store: StoreReader, monkeypatch: pytest.MonkeyPatch, is_ragged: bool
) -> None:
    """Whether or not their tables have to be read: with 10,000 of them, opening takes seconds."""
    opened: list[int] = []
    stop = threading.Event()

    def slow(number: int) -> Any:
        opened.append(number)
        stop.set()
        return shard

    shard, meta = cold_store.shard(0), cold_store.meta
    shards = np.repeat(np.arange(1000), len(shard))
    monkeypatch.setattr(cold_store, "meta", replace(meta, shards=meta.shards[:1] * 1000))
    monkeypatch.setattr(cold_store, "shard", slow)
    monkeypatch.setattr(type(shard), "announce_tables", lambda _: None)
    if is_ragged:
        ranges = np.array([[0, 10], [10, 20]])
        monkeypatch.setattr(sweep, "byte_ranges", lambda *_: ranges)
        monkeypatch.setitem(cold_store.fields, "image", FieldSpec("image", "array", "uint8", (None,)))
    sweep._sweep(cold_store, shards, ("image",), 1, stop, threading.Event())
    assert 0 < len(opened) <= SHARDS_AHEAD + 3


def test_one_that_was_cut_off_is_begun_again(cold_store: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peek at the first batch and a close do not cost the first epoch its sweep."""
    begun: list[threading.Event] = []

    def waiting(*arguments: Any) -> None:
        stop = arguments[-2]
        begun.append(stop)
        stop.wait(10)

    monkeypatch.setattr(sweep, "_sweep", waiting)
    loader = FastDataLoader(cold_store, 4)
    for _ in range(2):
        next(iter(loader))
        loader.close()
    assert len(begun) == 2
