"""Where samples stand in their files: every form of field, and shards that cannot tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.loader.breaking import NUM_ITEMS, bytes_of, make_store

from flatout.errors import StoreCorruptError
from flatout.loader.places import Places
from flatout.loader.ranges import split_ranges
from flatout.store import DataPreprocessor, StoreReader


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StoreReader:
    return make_store(tmp_path_factory.mktemp("ranges") / "store")


@pytest.mark.parametrize("name", ["image", "coded", "packed", "wave", "rolled"])
def test_they_are_the_samples_bytes_in_the_splits_order(whole: StoreReader, name: str) -> None:
    positions = np.random.default_rng(3).permutation(NUM_ITEMS)[:17]
    found = split_ranges(whole, whole.fields[name], Places.of(whole, positions))
    for at, (start, stop) in zip(positions.tolist(), found.tolist(), strict=True):
        _, offset, size = bytes_of(whole, at, name)
        assert (start, stop) == (offset, offset + size)


def test_a_field_without_bytes(tmp_path: Path) -> None:
    items = [{"x": np.empty((0, 3), np.float32), "y": np.ones(3, np.float32)} for _ in range(4)]
    fields = {"x": {"kind": "sequence"}}
    DataPreprocessor.from_dataset(items, tmp_path / "s", num_workers=0, fields=fields).run()
    store = StoreReader(tmp_path / "s")
    found = split_ranges(store, store.fields["x"], Places.of(store, np.arange(4)))
    assert (found[:, 0] == found[:, 1]).all()


def test_a_shard_whose_tables_are_damaged_is_left_to_whoever_reads_it(
    whole: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StoreReader(whole.folder)
    broken: Any = store.shard(0)

    def fail() -> None:
        raise StoreCorruptError("its tables")

    monkeypatch.setattr(broken, "_load_tables", fail)
    places = Places.of(store, np.arange(NUM_ITEMS))
    found = split_ranges(store, store.fields["packed"], places)
    is_known = found[:, 1] > 0
    assert np.array_equal(is_known, places.shards != 0)
    assert is_known.any()
    assert not is_known.all()
