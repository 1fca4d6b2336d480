"""Announced reads: on at first and whenever a thread had to wait for a page, off after a while without."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loader.breaking import NUM_ITEMS, make_store
from tests.store.crashing import wait_until

from flatout.loader import announce, fixed, lane
from flatout.loader.announce import MOST_PIECES, MOST_QUIET_BATCHES, QUIET_BATCHES, FaultWatch
from flatout.loader.fetch import Fetcher, ReadRule
from flatout.loader.loader import FastDataLoader
from flatout.loader.maker import MOST_AHEAD
from flatout.loader.mapped import MappedRows
from flatout.store import ShardReader
from flatout.store.announcing import ANNOUNCED_BYTES


class Faults:
    """A count of major faults that a test can raise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 7
        monkeypatch.setattr(announce, "major_faults", lambda: self.count)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


def cold_batches(watch: FaultWatch, unit: int = 1) -> int:
    """Batches from here on before which the watch says cold."""
    count = 0
    while watch.is_cold:
        count += unit
        watch.note_batches(unit)
    return count


@pytest.mark.parametrize("unit", [1, 3, 16])
def test_warm_data_is_announced_for_a_while_only(faults: Faults, unit: int) -> None:
    watch = FaultWatch()
    assert QUIET_BATCHES <= cold_batches(watch, unit) < QUIET_BATCHES + unit
    for _ in range(3 * QUIET_BATCHES):
        watch.note_batches(unit)
        assert not watch.is_cold


def test_a_fetched_page_turns_it_on_again_each_time_for_twice_as_long(faults: Faults) -> None:
    watch = FaultWatch()
    lasting = [cold_batches(watch)]
    for _ in range(12):
        faults.count += 1
        watch.note_batches(1)
        lasting.append(cold_batches(watch))
    assert lasting == [min(QUIET_BATCHES << turn, MOST_QUIET_BATCHES) for turn in range(13)]


def test_pages_that_are_fetched_all_along_change_nothing(faults: Faults) -> None:
    watch = FaultWatch()
    for _ in range(5):
        faults.count += 1
        watch.note_batches(1)
        assert watch.is_cold
    assert cold_batches(watch) == QUIET_BATCHES


def test_each_thread_looks_at_its_own_faults(faults: Faults) -> None:
    watch = FaultWatch()
    cold_batches(watch)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(cold_batches(watch)))
    thread.start()
    thread.join()
    assert seen == [QUIET_BATCHES]
    assert not watch.is_cold


def test_a_loader_announces_its_first_batches_and_those_after_a_cold_one(
    faults: Faults, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    store = make_store(tmp_path / "store", ("image", "label"))
    told: list[int] = []
    """Where each row ends in memory that was announced."""
    gathered: list[int] = []
    fetch_run = Fetcher.fetch_run

    def watched(self: Any, wanted: Any, *others: Any) -> Any:
        rows = self._fixed["image"].rows.mapped.rows
        ends = rows.ctypes.data + (wanted.found["image"] + 1) * rows.strides[0]
        assert set(ends.tolist()) <= set(told) or not is_cold
        gathered.extend(ends.tolist())
        return fetch_run(self, wanted, *others)

    monkeypatch.setattr(announce, "_will_need", lambda pieces: told.extend(pieces.sum(axis=1).tolist()))
    monkeypatch.setattr(Fetcher, "fetch_run", watched)
    monkeypatch.setattr(lane, "LANE_BYTES", 1 << 40)  # lanes announce nothing
    is_cold = True
    loader = FastDataLoader(store, 4, shuffle=True, num_workers=0, read=ReadRule(io="mmap"))
    list(loader)
    assert told[: len(gathered)] == gathered
    is_cold = False
    for _ in range((2 * QUIET_BATCHES + MOST_AHEAD) // len(loader) + 2):
        list(loader)
    assert len(told) < len(gathered)
    num_told, num_gathered = len(told), len(gathered)
    faults.count += 1  # found out after the next batch
    list(loader)
    list(loader)
    assert told[num_told : num_told + 4 * len(loader)] == gathered[num_gathered + 4 :][: 4 * len(loader)]


def test_the_tables_of_each_shard_are_announced_once_and_before_its_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    store = make_store(tmp_path / "store", ("image",))
    told: list[tuple[str, int]] = []
    monkeypatch.setattr(ShardReader, "announce_tables", lambda shard: told.append(("tables", id(shard))))
    monkeypatch.setattr(announce, "_will_need", lambda pieces: told.append(("rows", len(pieces))))
    fetcher = Fetcher(store, np.arange(NUM_ITEMS), 4, ReadRule(io="mmap"))
    shards = [id(store.shard(number)) for number in range(len(store.meta.shards))]
    assert len(shards) > 1
    fetcher.announce(fetcher.look_up(np.array([0, 1])))
    assert told == [("tables", shards[0]), ("rows", 2)]
    fetcher.announce(fetcher.look_up(np.array([NUM_ITEMS - 1, 0])))
    fetcher.announce(fetcher.look_up(np.arange(NUM_ITEMS)))
    tables = [each for kind, each in told if kind == "tables"]
    assert sorted(tables) == sorted(shards)
    assert told[2] == ("tables", shards[-1])


def test_without_checks_no_tables_are_announced(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    store = make_store(tmp_path / "store", ("image",))
    monkeypatch.setattr(ShardReader, "announce_tables", lambda shard: pytest.fail("nobody needs them"))
    fetcher = Fetcher(store, np.arange(NUM_ITEMS), 4, ReadRule(io="mmap", crc="off"))
    fetcher.announce(fetcher.look_up(np.arange(NUM_ITEMS)))


def test_where_faults_are_not_counted_nothing_seems_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no `resource`: the module must load there, too."""
    monkeypatch.setitem(sys.modules, "resource", None)
    spec = spec_from_file_location("announce_elsewhere", str(announce.__file__))
    assert spec is not None
    assert spec.loader is not None
    elsewhere: Any = module_from_spec(spec)
    spec.loader.exec_module(elsewhere)
    assert cold_batches(elsewhere.FaultWatch()) == QUIET_BATCHES


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 3 * ANNOUNCED_BYTES)), max_size=8))
def test_pieces_cover_each_stretch_in_order(stretches: list[tuple[int, int]]) -> None:
    firsts = np.array([first for first, _ in stretches], np.int64)
    ends = firsts + np.array([size for _, size in stretches], np.int64)
    wanted = [
        [start, min(ANNOUNCED_BYTES, first + size - start)]
        for first, size in stretches
        for start in range(first, first + size, ANNOUNCED_BYTES)
    ]
    assert announce._pieces(firsts, ends).tolist() == wanted


@pytest.mark.parametrize("together", [True, False])
def test_announced_pages_come_into_memory(
    together: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways; more pieces than go into one call."""
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("nothing here drops pages")
    num_rows, row_bytes = MOST_PIECES + 50, mmap.PAGESIZE
    path = tmp_path / "rows"
    path.write_bytes(os.urandom(num_rows * row_bytes))
    with open(path, "r+b") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    rows = np.memmap(path, np.uint8, "r", shape=(num_rows, row_bytes))
    announce.expect_no_neighbours(rows)
    if resident_pages(rows) > num_rows // 2:
        pytest.skip("this file system keeps its pages")
    calls: list[int] = []
    if together:
        monkeypatch.setattr(announce, "advise", lambda *call: calls.append(1))
    else:
        monkeypatch.setattr(announce, "_advise_together", lambda pieces: False)
    announce.announce_stretches(rows, np.arange(num_rows), np.arange(num_rows) + 1)
    if not takes_many():
        pytest.skip("this system takes one piece a call")
    assert calls == []
    assert wait_until(lambda: resident_pages(rows) == num_rows)


def takes_many() -> bool:
    """Whether the system's call works at all, on a page of this process."""
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        pair = (ctypes.c_uint64 * 2)(address, mmap.PAGESIZE)
        process = os.pidfd_open(os.getpid())
        try:
            call = ctypes.CDLL(None).syscall
            call.restype = ctypes.c_long
            return bool(call(440, process, ctypes.byref(pair), ctypes.c_size_t(1), 3, 0) == mmap.PAGESIZE)
        finally:
            os.close(process)


def resident_pages(rows: np.memmap[Any, Any]) -> int:
    """Pages of a mapped file that are in memory."""
    found = (ctypes.c_ubyte * (rows.nbytes // mmap.PAGESIZE))()
    address, size = ctypes.c_void_p(rows.ctypes.data), ctypes.c_size_t(rows.nbytes)
    assert ctypes.CDLL(None).mincore(address, size, found) == 0
    return sum(page & 1 for page in found)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="pages cannot be dropped here")
def test_rows_are_resident_once_they_were_read(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(bytes(64 * mmap.PAGESIZE))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            rows = np.frombuffer(mapped, np.uint8).reshape(64, mmap.PAGESIZE)
            announce.expect_no_neighbours(rows)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            some = np.array([9, 30, 63])
            if announce.are_resident(rows, some):
                pytest.skip("this file system keeps its pages in memory")
            rows[9].sum()
            assert not announce.are_resident(rows, some)
            rows[30].sum()
            assert announce.are_resident(rows, some)
            del rows


@pytest.mark.parametrize("is_cold", [False, True])
def test_a_large_batch_that_has_become_cold_is_announced_whole(
    is_cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody announces any more, and its pages are gone: else it would be fetched page by page."""
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    places = np.array([4, 1, 5])
    monkeypatch.setattr(fixed, "are_resident", lambda rows, places: not is_cold)
    told: list[list[int]] = []
    monkeypatch.setattr(fixed, "announce", lambda mapped, found: told.append(found.tolist()))
    source: Any = fixed.OneRange(MappedRows(table, np.zeros(1, np.int64)), None)  # type: ignore[arg-type]
    out = np.empty((3, 2), np.float32)
    source.gather(places, out)
    assert told == []  # small ones are left to the faults
    monkeypatch.setattr(fixed, "STREAM_BYTES", table.nbytes // 2)
    source.gather(places, out)
    assert told == ([places.tolist()] if is_cold else [])
    assert out.tolist() == table[places].tolist()
