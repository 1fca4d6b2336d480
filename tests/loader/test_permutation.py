"""permute is a permutation, the same everywhere, and shuffles well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.loader import permutation
from flatout.loader.permutation import permute

GOLDEN_10 = [7, 8, 1, 0, 9, 5, 6, 4, 3, 2]
GOLDEN_LARGE = [591240355292, 440554444706, 899452497623, 705690965381, 737679548891]

SIZES = st.integers(1, 3000)
SEEDS = st.integers(0, 2**64 - 1)


@pytest.fixture(autouse=True, params=["numpy", "compiled"])
def by_either(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every law holds for both ways to compute it."""
    before = permutation._shuffle
    permutation._shuffle = permutation._shuffle_by_numpy
    if request.param == "compiled":
        pytest.importorskip("numba")
        permutation.compile_shuffle()
        assert permutation._shuffle is not permutation._shuffle_by_numpy
    yield
    permutation._shuffle = before


@given(SIZES, SEEDS)
def test_every_number_once(size: int, seed: int) -> None:
    assert sorted(permute(np.arange(size), size, seed).tolist()) == list(range(size))


@given(SIZES, SEEDS, st.data())
def test_a_stretch_is_a_stretch_of_the_whole(size: int, seed: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    whole = permute(np.arange(size), size, seed)
    assert permute(np.arange(start, stop), size, seed).tolist() == whole[start:stop].tolist()


@given(st.integers(2, 10**13), SEEDS, st.data())
def test_both_ways_are_the_same(size: int, seed: int, data: st.DataObject) -> None:
    places = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=50)), np.int64)
    wanted = permutation._shuffle_by_numpy(places, permutation._grid(size, seed))
    assert permute(places, size, seed).tolist() == wanted.tolist()


def test_it_never_changes() -> None:
    """Golden values: another result means another order version."""
    assert permute(np.arange(10), 10, 7).tolist() == GOLDEN_10
    assert permute(np.arange(5), 10**12, 2**63 + 5).tolist() == GOLDEN_LARGE


def test_all_orders_of_four_are_about_equally_frequent() -> None:
    counts = Counter(tuple(permute(np.arange(4), 4, seed).tolist()) for seed in range(12_000))
    assert len(counts) == 24
    chi_square = sum((count - 500) ** 2 / 500 for count in counts.values())
    assert chi_square < 60  # 23 degrees of freedom: one in 30,000 exceeds it


def test_neighbours_and_seeds_are_unrelated() -> None:
    first, second = (permute(np.arange(50_000), 50_000, seed).astype(float) for seed in (1, 2))
    for left, right in ((first[:-1], first[1:]), (first, second), (first, np.arange(50_000.0))):
        assert abs(np.corrcoef(left, right)[0, 1]) < 0.02
