"""SampleCache against a simple model: what was used last stays, within both bounds, whoever asks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flatout.loader.cache import CacheStats, SampleCache

STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 8), st.integers(0, 12)), max_size=60)


class Model:
    """The least recently used of a list stands first."""

    def __init__(self, max_arrays: int, max_bytes: int) -> None:
        self.max_arrays, self.max_bytes = max_arrays, max_bytes
        self.held: list[tuple[int, int]] = []

    def get(self, key: int) -> int | None:
        for entry in self.held:
            if entry[0] == key:
                self.held.remove(entry)
                self.held.append(entry)
                return entry[1]
        return None

    def put(self, key: int, size: int) -> None:
        if size > self.max_bytes or not self.max_arrays:
            return
        self.held = [entry for entry in self.held if entry[0] != key]
        self.held.append((key, size))
        while len(self.held) > self.max_arrays or sum(size for _, size in self.held) > self.max_bytes:
            self.held.pop(0)


@given(st.integers(0, 5), st.integers(0, 30), STEPS)
def test_it_holds_what_the_model_holds(
    max_arrays: int, max_bytes: int, steps: list[tuple[bool, int, int]]
) -> None:
    cache, model = SampleCache(max_arrays, max_bytes), Model(max_arrays, max_bytes)
    hits = asked = 0
    for is_put, key, size in steps:
        if is_put:
            cache.put(key, np.full(size, key, np.uint8))
            model.put(key, size)
        else:
            found, wanted = cache.get(key), model.get(key)
            assert (None if found is None else len(found)) == wanted
            assert found is None or (found == key).all()
            hits, asked = hits + (wanted is not None), asked + 1
    held = sum(size for _, size in model.held)
    assert cache.stats == CacheStats(hits, asked - hits, len(model.held), held)
    assert cache.stats.hit_rate == (hits / asked if asked else 0.0)


def test_what_is_kept_is_a_copy_that_nobody_can_change() -> None:
    cache = SampleCache(4, 1000)
    large = np.arange(1000, dtype=np.uint8)
    cache.put(1, large[:10])
    large[:] = 0
    kept = cache.get(1)
    assert kept is not None
    assert kept.tolist() == list(range(10))
    assert kept.base is None
    assert not kept.flags.writeable


def test_threads_share_it() -> None:
    cache = SampleCache(20, 20 * 64)

    def work(seed: int) -> int:
        wrong = 0
        for key in np.random.default_rng(seed).integers(0, 60, 2000).tolist():
            found = cache.get(key)
            if found is None:
                cache.put(key, np.full(64, key, np.uint8))
            else:
                wrong += bool((found != key).any())
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) == 0
    stats = cache.stats
    assert stats.hits + stats.misses == 8000
    assert (stats.num_arrays, stats.num_bytes) == (20, 20 * 64)
