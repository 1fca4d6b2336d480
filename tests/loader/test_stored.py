"""Compressed samples: outside libhdf5's lock, and kept by exactly the rule that the cache states."""

from __future__ import annotations

import multiprocessing
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.loader.breaking import NUM_ITEMS, flip, make_store

from flatout.errors import StoreCorruptError
from flatout.loader.cache import CacheRule
from flatout.loader.fetch import ReadRule
from flatout.loader.loader import FastDataLoader
from flatout.store import StoreReader

PACKED = ("packed", "rolled", "label")
PLENTY = 1 << 30


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> StoreReader:
    """Two compressed fields, one of them ragged."""
    return make_store(tmp_path_factory.mktemp("packed") / "store", PACKED)


def loader_of(store: StoreReader, cache: CacheRule | None, **others: Any) -> FastDataLoader:
    rule = ReadRule(cache=cache, crc=others.pop("crc", "first"))
    return FastDataLoader(store, 5, shuffle=True, seed=2, read=rule, **{"num_workers": 0, **others})


def check_same(found: Any, wanted: Any) -> None:
    for batch, other in zip(found, wanted, strict=True):
        assert batch.keys() == other.keys()
        assert all(torch.equal(batch[name], other[name]) for name in batch)


def test_decompression_needs_no_lock_of_libhdf5(packed: StoreReader) -> None:
    from h5py._objects import phil

    batches: list[Any] = []
    with phil:
        thread = threading.Thread(target=lambda: batches.extend(loader_of(packed, None)))
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    assert sum(len(batch["key"]) for batch in batches) == NUM_ITEMS


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("rule", [CacheRule(7, PLENTY), CacheRule(1000, 30_000), CacheRule(0, PLENTY)])
def test_a_cache_changes_no_batch(packed: StoreReader, rule: CacheRule, num_workers: int) -> None:
    loader, plain = loader_of(packed, rule, num_workers=num_workers), loader_of(packed, None)
    for _ in range(3):
        check_same(loader, plain)
    loader.close()
    assert loader.cache_stats.num_arrays <= 2 * rule.num_samples
    assert loader.cache_stats.num_bytes <= rule.num_bytes


@pytest.mark.parametrize("cache_size", [1, 9, 20, NUM_ITEMS])
def test_hits_are_those_of_the_least_recently_used_rule(packed: StoreReader, cache_size: int) -> None:
    loader = loader_of(packed, CacheRule(cache_size, PLENTY))
    kept: OrderedDict[int, None] = OrderedDict()
    hits = asked = 0
    for _ in range(4):
        for batch in loader:
            for key in batch["key"].tolist():
                asked += 1
                hits += key in kept
                kept[key] = None
                kept.move_to_end(key)
                if len(kept) > cache_size:
                    kept.popitem(last=False)
    stats = loader.cache_stats
    assert (stats.hits, stats.misses) == (2 * hits, 2 * (asked - hits))  # two compressed fields a sample
    assert stats.num_arrays == 2 * len(kept)


def test_it_lives_as_long_as_the_loader(packed: StoreReader) -> None:
    loader = loader_of(packed, CacheRule(NUM_ITEMS, PLENTY), num_workers=1)
    for _ in range(3):
        list(loader)
    loader.close()
    for _ in loader:
        break
    assert loader.cache_stats.num_arrays == 2 * NUM_ITEMS
    assert 0 <= loader.cache_stats.misses - 2 * NUM_ITEMS <= 8  # two threads may come upon a sample at once
    assert loader.cache_stats.hit_rate >= 0.6
    loader.close()


def test_without_compressed_fields_there_is_no_cache(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", ("image", "label"))
    loader = loader_of(store, CacheRule(NUM_ITEMS, PLENTY))
    list(loader)
    assert loader.cache_stats.misses == 0


@pytest.mark.parametrize("crc", ["first", "always"])
def test_a_damaged_sample_is_an_error_each_time(tmp_path: Path, crc: str) -> None:
    store = make_store(tmp_path / "store", PACKED)
    flip(store, 3, "packed")
    loader = loader_of(store, CacheRule(NUM_ITEMS, PLENTY), crc=crc)
    for _ in range(2):
        with pytest.raises(StoreCorruptError, match=r"field 'packed' of sample '.*--repair"):
            list(loader)


def count_in_child(loader: FastDataLoader, queue: Any) -> None:
    queue.put((sum(len(batch["key"]) for batch in loader), loader.cache_stats.misses))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_a_cache_of_its_own(packed: StoreReader) -> None:
    loader = loader_of(packed, CacheRule(NUM_ITEMS, PLENTY))
    list(loader)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=count_in_child, args=(loader, queue))
    child.start()
    assert queue.get(timeout=60) == (NUM_ITEMS, 2 * NUM_ITEMS)
    child.join()
    list(loader)
    assert loader.cache_stats.misses == 2 * NUM_ITEMS
