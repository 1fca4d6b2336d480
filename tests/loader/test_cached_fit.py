"""A cache serves only the dataset that it was made by."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.loader.caching import (
    NUM_ITEMS,
    Listed,
    Made,
    assert_all,
    cached,
)
from tests.loader.caching import items as items

import flatout
from flatout.errors import CacheError
from flatout.store import StoreReader, verify
from flatout.store.metadata import SHARD_FOLDER, is_store


def test_another_state_of_the_dataset_is_refused(items: Any, tmp_path: Path) -> None:
    cached(items(), tmp_path / "cache", version=None)[0]
    gc.collect()
    with pytest.raises(CacheError, match=r"attribute size changed.*new directory.*clear=True"):
        cached(items(size=601), tmp_path / "cache", version=None)
    with pytest.raises(CacheError, match="had 40 items and has 41"):
        cached(items(num_items=41), tmp_path / "cache", version=None)


def test_a_version_stands_for_the_code(items: Any, tmp_path: Path) -> None:
    cached(items(), tmp_path / "cache", version="1")
    cached(items(size=601), tmp_path / "cache", version="1")
    with pytest.raises(CacheError, match="'1' to '2'"):
        cached(items(), tmp_path / "cache", version="2")


def test_changed_data_is_noticed(tmp_path: Path) -> None:
    old = cached(Made(lambda at: {"x": at, "y": at}), tmp_path / "cache")
    list(old)
    with pytest.raises(CacheError, match=r"item \d+ is no longer what the cache holds: field 'y'"):
        cached(Made(lambda at: {"x": at, "y": at + 1}), tmp_path / "cache", check=True)
    with pytest.raises(CacheError, match="its structure"):
        cached(Made(lambda at: {"x": at, "y": float(at)}), tmp_path / "cache", check=True)
    cached(Made(lambda at: {"x": at, "y": at}), tmp_path / "cache", check=True)


def test_a_full_cache_needs_no_data(items: Any, tmp_path: Path) -> None:
    list(cached(items(), tmp_path / "cache"))

    def gone(at: int) -> Any:
        raise FileNotFoundError("the raw data was moved")

    assert_all(cached(Made(gone, NUM_ITEMS), tmp_path / "cache", check=True))


def test_clear_fills_it_anew(items: Any, tmp_path: Path) -> None:
    list(cached(items(), tmp_path / "cache", version="1"))
    dataset = cached(items(size=50), tmp_path / "cache", version="2", clear=True)
    assert dataset.num_cached == 0
    assert not is_store(tmp_path / "cache")
    assert_all(dataset, size=50)
    assert verify(tmp_path / "cache")
    assert len(list((tmp_path / "cache" / SHARD_FOLDER).iterdir())) == 1


def test_whoever_uses_a_cleared_cache_goes_on_in_the_new_one(items: Any, tmp_path: Path) -> None:
    first = cached(items(), tmp_path / "cache", shard_bytes=1)
    first[0]
    second = cached(items(), tmp_path / "cache", clear=True)
    first[1]
    assert second.num_cached == 1
    assert_all(first)
    assert_all(second)
    assert verify(tmp_path / "cache")


def test_a_cache_cleared_for_another_dataset_is_not_written_to(items: Any, tmp_path: Path) -> None:
    first = cached(items(), tmp_path / "cache", shard_bytes=1)
    first[0]
    second = cached(Listed([1, 2]), tmp_path / "cache", clear=True, version="2")
    with pytest.warns(RuntimeWarning, match="cleared by another program"):
        first[1]
    assert_all(first)
    assert second.num_cached == 0
    assert list(second) == [1, 2]


def test_a_prepared_store_is_no_cache(store: StoreReader, tmp_path: Path) -> None:
    for clear in (False, True):
        with pytest.raises(CacheError, match="holds a prepared store"):
            cached(Listed([1]), store.folder, clear=clear)
    assert verify(store.folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', '{"version": 2}'])
def test_a_damaged_head_is_refused(text: str, tmp_path: Path) -> None:
    cached(Listed([1]), tmp_path / "cache")
    (tmp_path / "cache" / "cache.json").write_text(text)
    with pytest.raises(CacheError, match=r"cache\.json is"):
        cached(Listed([1]), tmp_path / "cache")
    assert cached(Listed([1]), tmp_path / "cache", clear=True)[0] == 1


def test_a_cache_of_an_early_build_says_how_to_begin_anew(tmp_path: Path) -> None:
    cached(Listed([1]), tmp_path / "cache")
    head = tmp_path / "cache" / "cache.json"
    head.write_text(json.dumps({**json.loads(head.read_text()), "version": 1}))
    with pytest.raises(CacheError, match=r"is version 1; this release reads 2\. Use clear=True"):
        cached(Listed([1]), tmp_path / "cache")
    assert cached(Listed([1]), tmp_path / "cache", clear=True)[0] == 1


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot hold a cache"):
        cached(Listed([1]), tmp_path / "file")


@pytest.mark.parametrize("wrong", [iter([1]), {1, 2}, 5])
def test_only_map_style_datasets(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="map-style"):
        cached(wrong, tmp_path / "cache")


def test_a_dataset_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither a cache that would refuse the dataset once it is mended, nor a hole where another one was."""
    folder = tmp_path / "cache"
    with pytest.raises(CacheError, match="not the same each time"):
        flatout.cached(Made(lambda at: np.random.random(3)), folder)
    assert not folder.exists()
    kept = flatout.cached(Made(lambda at: np.full(3, at)), folder)
    assert kept[5].tolist() == [5, 5, 5]
    kept.close()
    with pytest.raises(CacheError, match="not the same each time"):
        flatout.cached(Made(lambda at: np.random.random(3)), folder, clear=True)
    assert kept.num_cached == 1


def test_two_datasets_in_one_place_are_refused_before_either_has_written(items: Any, tmp_path: Path) -> None:
    """Train and val with the same directory by mistake."""
    train = cached(items(), tmp_path / "cache", version="train")
    with pytest.raises(CacheError, match="another dataset"):
        cached(items(), tmp_path / "cache", version="val")
    assert_all(train)
