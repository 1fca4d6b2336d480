"""What goes wrong in a producer reaches the training loop: which sample, which shard, what to do."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.loader.epochs import WAIT_S, keys_of, producers

from flatout.errors import FlatoutError, LoaderError, StoreCorruptError
from flatout.loader import pread
from flatout.loader.dataset import FastDataset
from flatout.loader.fetch import ReadRule
from flatout.loader.loader import FastDataLoader
from flatout.loader.order import Sequential
from flatout.store import DataPreprocessor, StoreReader, layout

NUM_ITEMS = 40
BATCH = 4


class Items:
    """A large field, whose samples have a crc of their own, small ones that share crcs, and others."""

    def __len__(self) -> int:
        return NUM_ITEMS

    def __getitem__(self, at: int) -> dict[str, Any]:
        random = np.random.default_rng(at)
        return {
            "large": random.random((2, 1024), np.float32),
            "medium": random.random((100,), np.float32),
            "packed": random.integers(0, 9, (900,)).astype(np.int32),
            "series": random.random((at % 7 + 50, 3), np.float32),
            "label": at % 5,
        }


FIELDS = {"packed": {"kind": "transform", "compression": "zstd"}, "series": {"kind": "sequence"}}


@pytest.fixture
def store(tmp_path: Path) -> StoreReader:
    DataPreprocessor.from_dataset(Items(), tmp_path / "store", num_workers=0, fields=FIELDS).run()
    return StoreReader(tmp_path / "store")


@dataclass(frozen=True)
class Place:
    """Where a sample's field stands on disk."""

    path: Path
    offset: int
    key: str


def place_of(store: StoreReader, position: int, name: str) -> Place:
    shard = store.shard(int(store.numbers["shard"][position]))
    row = int(store.numbers["row"][position])
    if store.fields[name].compression != "none":
        offset = int(shard.tables[layout.chunks_path(name)][row][0])
    else:
        offset = (shard.offset_of(name) or 0) + shard.byte_range(name, row)[0]
    return Place(shard.path, offset, store.keys()[position])


def damage(place: Place, at: int = 40) -> None:
    """Turn one byte over; the file keeps its size."""
    place.path.chmod(0o600)
    with open(place.path, "r+b") as file:
        file.seek(place.offset + at)
        byte = file.read(1)[0]
        file.seek(place.offset + at)
        file.write(bytes([byte ^ 0xFF]))


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("name", ["large", "medium", "packed", "series"])
def test_a_damaged_sample_is_named(store: StoreReader, io: str, name: str) -> None:
    place = place_of(store, 21, name)
    damage(place)
    store = StoreReader(store.folder)
    rule = ReadRule(io=io)
    with pytest.raises(StoreCorruptError) as by_loader:
        list(FastDataLoader(store, BATCH, num_workers=2, read=rule))
    with pytest.raises(StoreCorruptError) as by_dataset:
        FastDataset(store, io=io)[21]
    for raised in (by_loader, by_dataset):
        text = str(raised.value)
        assert place.path.name in text
        assert name in text
        assert f"flatout verify {store.folder} --repair" in text
    if name not in ("medium", "series"):  # these share their crcs with their neighbours
        assert f"'{place.key}'" in str(by_loader.value)
        assert f"'{place.key}'" in str(by_dataset.value)


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_batches_before_it_are_delivered_and_none_after_it(store: StoreReader, num_workers: int) -> None:
    place = place_of(store, 21, "large")
    damage(place)
    before = producers()
    loader = FastDataLoader(store.folder, BATCH, num_workers=num_workers)
    stream = iter(loader)
    good = keys_of(next(stream) for _ in range(5))
    assert good == store.numbers["key_hash"].view(np.int64)[:20].tolist()
    for _ in range(3):
        with pytest.raises(StoreCorruptError, match=re.escape(f"'{place.key}'")):
            next(stream)
    assert loader.state_dict()["samples"] == 20
    del stream
    loader.close()
    assert producers() == before


def test_any_error_of_a_producer_arrives_as_it_is(store: StoreReader) -> None:
    class Failing(Sequential):
        def stretch(self, epoch: int, start: int, stop: int) -> Any:
            if epoch == 1:
                raise ZeroDivisionError("of the second epoch")
            return super().stretch(epoch, start, stop)

    loader = FastDataLoader(store, BATCH, order=Failing(NUM_ITEMS), num_workers=2)
    assert len(list(loader)) == NUM_ITEMS // BATCH  # made ahead, but not asked for: no error yet
    with pytest.raises(ZeroDivisionError, match="second epoch"):
        next(iter(loader))


def fail_reads(monkeypatch: pytest.MonkeyPatch, place: Place, num_failures: int) -> list[int]:
    """Let the disk fail, so many times, wherever this place is read."""
    failed: list[int] = []
    read_some = pread._read_some

    def read(descriptor: int, offset: int, view: memoryview) -> int:
        is_here = os.path.samestat(os.fstat(descriptor), place.path.stat())
        if is_here and offset <= place.offset < offset + len(view) and len(failed) < num_failures:
            failed.append(offset)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read_some(descriptor, offset, view)

    monkeypatch.setattr(pread, "_read_some", read)
    return failed


def test_a_read_that_fails_once_is_tried_again(store: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = fail_reads(monkeypatch, place_of(store, 21, "large"), 1)
    loader = FastDataLoader(store, BATCH, num_workers=2, read=ReadRule(io="pread"))
    assert len(keys_of(loader)) == NUM_ITEMS
    assert len(failed) == 1
    loader.close()


@pytest.mark.parametrize("name", ["large", "medium", "packed", "series"])
def test_an_io_error_names_sample_and_shard(
    store: StoreReader, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    place = place_of(store, 21, name)
    fail_reads(monkeypatch, place, 10**6)
    loader = FastDataLoader(store, BATCH, num_workers=2, read=ReadRule(io="pread"))
    with pytest.raises(LoaderError, match="Input/output error") as raised:
        list(loader)
    assert str(place.path) in str(raised.value)
    assert "flatout verify" in str(raised.value)
    if name in ("large", "packed"):  # the others are read with their neighbours to compare their crc
        assert f"'{place.key}'" in str(raised.value)


TRUNCATED = """
import json, os, sys
from flatout.errors import FlatoutError
from flatout.loader.fetch import ReadRule
from flatout.loader.loader import FastDataLoader
folder, path, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
loader = FastDataLoader(folder, 4, num_workers=2, prefetch_factor=1, read=ReadRule(io="pread"))
stream = iter(loader)
next(stream)
os.chmod(path, 0o600)
os.truncate(path, size)
try:
    for _ in range(20):
        list(stream)
        stream = iter(loader)
    print(json.dumps("no error"))
except FlatoutError as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.parametrize("keep", ["half", pytest.param("nothing", marks=pytest.mark.slow)])
def test_a_shard_cut_short_under_the_loader_is_an_error_not_a_signal(store: StoreReader, keep: str) -> None:
    """In a process of its own: under a map it would be killed."""
    path = store.shard(len(store.meta.shards) - 1).path
    size = 0 if keep == "nothing" else path.stat().st_size // 2
    command = [sys.executable, "-c", TRUNCATED, str(store.folder), str(path), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    text = json.loads(done.stdout)
    assert str(path) in text
    assert "flatout verify" in text
    assert re.search(r"sample '\w+'", text), text


def test_a_shard_that_is_short_from_the_start_is_refused(store: StoreReader) -> None:
    path = store.shard(0).path
    path.chmod(0o600)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(FlatoutError, match=rf"{path.name}.*bytes instead of.*--repair"):
        FastDataLoader(store.folder, BATCH)
