"""Reading by calls: the same batches without a single map, and errors instead of signals."""

from __future__ import annotations

import errno
import os
import pickle
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.loader.breaking import NUM_ITEMS, bytes_of, key_hashes, make_store

from flatout.errors import LoaderError
from flatout.loader import kept, pread
from flatout.loader import preload as preloading
from flatout.loader.fetch import ReadRule
from flatout.loader.loader import FastDataLoader
from flatout.loader.machine import Machine
from flatout.loader.mount import choose_io, open_as
from flatout.loader.pread import MAX_OPEN, Files
from flatout.loader.preload import preload
from flatout.loader.samples import SampleReader
from flatout.loader.sweep import Sweep
from flatout.loader.told_files import ToldFiles
from flatout.store import StoreReader
from flatout.store.announcing import ANNOUNCED_BYTES

MAPS = Path("/proc/self/maps")


@pytest.fixture
def fresh(tmp_path: Path) -> StoreReader:
    """A store of every form of field, of which nothing is mapped."""
    return StoreReader(make_store(tmp_path / "store").folder)


def loader_of(store: StoreReader, io: str, **others: Any) -> FastDataLoader:
    rule = ReadRule(io=io, on_damage=others.pop("on_damage", "raise"))
    return FastDataLoader(store, 5, shuffle=True, seed=2, read=rule, **{"num_workers": 0, **others})


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_those_of_the_map(fresh: StoreReader, num_workers: int) -> None:
    by_calls, by_map = loader_of(fresh, "pread", num_workers=num_workers), loader_of(fresh, "mmap")
    for _ in range(2):
        for batch, wanted in zip(by_calls, by_map, strict=True):
            assert batch.keys() == wanted.keys()
            assert all(torch.equal(batch[name], wanted[name]) for name in batch)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="needs a system that can be told ahead")
@pytest.mark.parametrize("name", ["image", "packed", "wave", "rolled"])
def test_samples_are_announced_before_they_are_read(
    fresh: StoreReader, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Rows of one shape, compressed ones, and ragged ones of both kinds: the bytes of each, in their order.

    The tables of their shards, which stand at the start of the file, are told before them."""
    advise, read_some = os.posix_fadvise, pread._read_some
    source = open_as(fresh, "pread").store
    places = {bytes_of(source, at, name) for at in range(NUM_ITEMS)}
    starts = {(path.stat().st_ino, offset) for path, offset, _ in places}
    told: list[tuple[int, int, int]] = []
    asked: list[tuple[int, int, int]] = []
    heads: set[int] = set()

    def tell(descriptor: int, offset: int, size: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        file, file_size = os.fstat(descriptor).st_ino, os.fstat(descriptor).st_size
        assert 0 < size < file_size
        if offset == 0:
            heads.add(file)
        else:
            assert file in heads
            told.append((file, offset, size))
        advise(descriptor, offset, size, advice)

    def read(descriptor: int, offset: int, view: memoryview) -> int:
        place = os.fstat(descriptor).st_ino, offset
        if place in starts:
            asked.append((*place, len(view)))
            assert len(told) >= len(asked)
        return read_some(descriptor, offset, view)

    monkeypatch.setattr(os, "posix_fadvise", tell)
    monkeypatch.setattr(pread, "_read_some", read)
    loader = FastDataLoader(fresh, 5, shuffle=True, num_workers=0, read=ReadRule(io="pread", fields=(name,)))
    for _ in range(3):
        list(loader)
    assert len(asked) == 3 * NUM_ITEMS
    assert told[: len(asked)] == asked


def test_much_is_announced_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more at once, Linux fetches only as much as a device takes in one request."""
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, offset, size, __: told.append((offset, size)))
    (tmp_path / "file").touch()
    Files().announce(tmp_path / "file", 100, 2 * ANNOUNCED_BYTES + 7)
    assert told == [
        (100, ANNOUNCED_BYTES),
        (100 + ANNOUNCED_BYTES, ANNOUNCED_BYTES),
        (100 + 2 * ANNOUNCED_BYTES, 7),
    ]


def test_a_sample_without_bytes_is_not_announced() -> None:
    """A length of 0 means the rest of the file to the system."""
    told: list[tuple[Path, int, int]] = []

    class Noting(Files):
        def announce(self, path: Path, offset: int, size: int) -> None:
            told.append((path, offset, size))

    paths = [Path("a"), Path("b")]
    ranges = np.array([[8, 8], [8, 20], [0, 5], [0, 0]])
    ToldFiles(Noting(), paths, np.array([0, 0, 1, 1]), ranges).announce(np.array([3, 2, 1, 0]))
    assert told == [(paths[1], 0, 5), (paths[0], 8, 12)]


@pytest.mark.parametrize(("num_bytes", "wanted"), [(1000, "mmap"), (1001, "pread")])
def test_more_than_the_memory_is_read_by_calls(tmp_path: Path, num_bytes: int, wanted: str) -> None:
    assert choose_io("auto", tmp_path, num_bytes, memory_bytes=1000) == wanted
    assert choose_io("mmap", tmp_path, num_bytes, memory_bytes=1000) == "mmap"


@pytest.mark.skipif(not MAPS.exists(), reason="needs the list of this process's maps")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_nothing_is_mapped(fresh: StoreReader, monkeypatch: pytest.MonkeyPatch, num_workers: int) -> None:
    """Not by the sweep of a cold split either, which goes with producers."""
    monkeypatch.setattr(kept, "MIN_BYTES", 1)
    positions = np.arange(len(fresh))
    reader = SampleReader(fresh, positions, list(fresh.fields), ReadRule(io="pread"))
    loader, seen = loader_of(fresh, "pread", num_workers=num_workers), []
    for _ in loader:
        reader.read(positions[:3])
        seen.append(str(fresh.folder) in MAPS.read_text())
    if num_workers and Sweep.can_look():
        swept = loader._kept._sweep
        assert swept is not None
        swept._thread.join(10)
        seen.append(str(fresh.folder) in MAPS.read_text())
    assert seen == [False] * len(seen)
    next(iter(loader_of(fresh, "mmap")))
    assert str(fresh.folder) in MAPS.read_text()


@pytest.mark.parametrize("name", ["image", "packed", "wave", "rolled"])
def test_a_shard_cut_short_while_it_is_open(fresh: StoreReader, name: str) -> None:
    path, offset, size = bytes_of(open_as(fresh, "pread").store, 7, name)
    stream = chain(*repeat(loader_of(fresh, "pread"), 3))  # what was read before may not be asked for again
    next(stream)
    path.chmod(0o600)
    os.truncate(path, offset + size // 2)
    with pytest.raises(LoaderError, match="the file ends early") as raised:
        list(stream)
    for part in (f"shard {path}", "sample '", f"'flatout verify {fresh.folder} --repair'"):
        assert part in str(raised.value)


def fail_at(monkeypatch: pytest.MonkeyPatch, place: tuple[Path, int, int]) -> None:
    """Let the disk fail wherever this stretch is read."""
    path, start, size = place
    read_some = pread._read_some

    def read(descriptor: int, offset: int, view: memoryview) -> int:
        is_here = os.path.samestat(os.fstat(descriptor), path.stat())
        if is_here and offset < start + size and offset + len(view) > start:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read_some(descriptor, offset, view)

    monkeypatch.setattr(pread, "_read_some", read)


@pytest.mark.parametrize("name", ["image", "packed", "wave", "rolled"])
def test_a_bad_sector_is_one_sample_less(
    fresh: StoreReader, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fail_at(monkeypatch, bytes_of(open_as(fresh, "pread").store, 7, name))
    loader = loader_of(fresh, "pread", on_damage="skip", num_workers=2)
    keys = [key for batch in loader for key in batch["key"][batch["valid"]].tolist()]
    assert sorted(keys) == sorted(set(key_hashes(fresh)) - {key_hashes(fresh)[7]})
    assert loader.damaged == [fresh.keys()[7]]
    loader.close()


def test_a_preload_that_cannot_be_read_is_named(fresh: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(preloading, "_read_run", fail)
    with pytest.raises(LoaderError, match=r"shard .* cannot be read at byte .*Input/output error.*--repair"):
        preload(fresh, np.arange(3), Machine("linux", 2, 1 << 40, 1 << 40), "x")


def test_only_so_many_files_are_open_at_once(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}" for number in range(MAX_OPEN + 20)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number % 251] * 8))
    files = Files()
    before = len(list(Path("/proc/self/fd").iterdir())) if MAPS.exists() else 0
    for number, path in enumerate(paths):
        assert files.open(path, 8).read(2, 3).tolist() == [number % 251] * 3
    if MAPS.exists():
        assert len(list(Path("/proc/self/fd").iterdir())) - before == MAX_OPEN


def test_an_unpickled_loader_reads_by_calls_again(fresh: StoreReader) -> None:
    loader = pickle.loads(pickle.dumps(loader_of(fresh, "pread")))
    assert sum(len(batch["key"]) for batch in loader) == NUM_ITEMS
    assert not MAPS.exists() or str(fresh.folder) not in MAPS.read_text()
