"""A split's rows are read once into the page cache; what does not fit is refused before a byte is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import LoaderError, StoreCorruptError
from flatout.loader import preload as module
from flatout.loader.machine import Machine
from flatout.loader.preload import GAP_BYTES, _joined, preload
from flatout.store import DataPreprocessor, StoreReader, plan

ROOMY = Machine("linux", 2, 1 << 40, 1 << 40)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, int, int]]:
    """(file, start, stop) of everything read."""
    found: list[tuple[Path, int, int]] = []
    before = module._read

    def read(shard: Any, runs: list[list[int]]) -> None:
        found.extend((shard.path, start, stop) for start, stop in runs)
        before(shard, runs)

    monkeypatch.setattr(module, "_read", read)
    return found


def test_every_byte_of_the_samples_is_read(store: StoreReader, reads: list[tuple[Path, int, int]]) -> None:
    positions = np.arange(0, len(store), 3)
    total = preload(store, positions, ROOMY, "x")
    assert total == sum(stop - start for _, start, stop in reads)
    for at in positions.tolist():
        shard = store.shard(int(store.numbers["shard"][at]))
        row = int(store.numbers["row"][at])
        for name in ("image", "series", "small"):
            base = shard.offset_of(name)
            assert base is not None
            start, stop = (base + edge for edge in shard.byte_range(name, row))
            assert any(p == shard.path and a <= start and stop <= b for p, a, b in reads)


def test_fields_that_are_not_wanted_are_not_read(store: StoreReader) -> None:
    everything = np.arange(len(store))
    assert preload(store, everything, ROOMY, "x", ["label"]) < preload(store, everything, ROOMY, "x") / 50


def test_rows_of_another_split_are_not_read(
    tmp_path: Path, reads: list[tuple[Path, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MIN_SHARDS", 1)
    items = [{"x": np.full((1 << 18,), number, np.uint8)} for number in range(12)]
    DataPreprocessor.from_dataset(items, tmp_path / "s", num_workers=0).run()
    store = StoreReader(tmp_path / "s")
    assert preload(store, np.array([2, 3, 9]), ROOMY, "x") == 3 << 18
    assert len(reads) == 2


def test_what_does_not_fit_is_refused_unread(store: StoreReader, reads: list[tuple[Path, int, int]]) -> None:
    small = Machine("linux", 2, 1000, 1000)
    with pytest.raises(LoaderError, match=r"preload_val_data.*1,000 bytes of free memory"):
        preload(store, np.arange(len(store)), small, "preload_val_data")
    assert reads == []


def test_no_samples_are_no_bytes(store: StoreReader) -> None:
    assert preload(store, np.empty(0, np.int64), ROOMY, "x") == 0


def test_a_shard_that_lost_its_end_is_named(tmp_path: Path) -> None:
    items = [{"x": np.full((9000,), number, np.uint8)} for number in range(3)]
    DataPreprocessor.from_dataset(items, tmp_path / "s", num_workers=0).run()
    store = StoreReader(tmp_path / "s")
    shard = store.shard(0)
    with open(shard.path, "r+b") as file:
        file.truncate(shard.meta.size - 5000)
    with pytest.raises(StoreCorruptError, match=rf"{shard.path.name}.*too early"):
        preload(store, np.arange(3), ROOMY, "x")


@given(st.lists(st.tuples(st.integers(0, 1 << 21), st.integers(1, 1 << 16)), min_size=1, max_size=20))
def test_joined_ranges_hold_all_and_stand_apart(pairs: list[tuple[int, int]]) -> None:
    ranges = np.array([(start, start + size) for start, size in pairs])
    joined = _joined(ranges)
    for start, stop in ranges.tolist():
        assert ((joined[:, 0] <= start) & (stop <= joined[:, 1])).any()
    assert (joined[1:, 0] - joined[:-1, 1] > GAP_BYTES).all()
    assert set(joined[:, 0]) <= set(ranges[:, 0])
    assert set(joined[:, 1]) <= set(ranges[:, 1])
