"""Laws of every order: any stretch is a stretch of the epoch; each has its own promise about samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import ConfigError
from flatout.loader.local import ShardLocal
from flatout.loader.order import Balanced, Order, Sequential, Shuffled, Weighted, check_choices

Make = Callable[[int, int], Order]


def shards_of(size: int) -> np.ndarray:
    return np.sort(np.random.default_rng(size).integers(0, 9, size)).astype(np.int32)


ORDERS: dict[str, Make] = {
    "sequential": lambda size, seed: Sequential(size),
    "shuffled": Shuffled,
    "shard_local": lambda size, seed: ShardLocal.of(shards_of(size), seed, window=3),
    "weighted": lambda size, seed: Weighted.of(np.arange(1.0, size + 1), seed),
    "balanced": lambda size, seed: Balanced.of(np.arange(size) % 3, seed),
}
ONCE = ("sequential", "shuffled", "shard_local")


@pytest.mark.parametrize("name", ORDERS)
@given(st.integers(1, 400), st.integers(0, 2**32), st.integers(0, 50), st.data())
def test_a_stretch_is_a_stretch_of_the_epoch(
    name: str, size: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    order = ORDERS[name](size, seed)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    whole = order.stretch(epoch, 0, size)
    assert len(whole) == order.num_samples == size
    assert whole.min() >= 0
    assert whole.max() < size
    assert order.stretch(epoch, start, stop).tolist() == whole[start:stop].tolist()


@pytest.mark.parametrize("name", ONCE)
@given(st.integers(1, 400), st.integers(0, 2**32), st.integers(0, 50))
def test_every_sample_once(name: str, size: int, seed: int, epoch: int) -> None:
    assert sorted(ORDERS[name](size, seed).stretch(epoch, 0, size).tolist()) == list(range(size))


@pytest.mark.parametrize("name", [name for name in ORDERS if name != "sequential"])
def test_epochs_and_seeds_differ(name: str) -> None:
    orders = [ORDERS[name](300, seed).stretch(epoch, 0, 300).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


def test_shard_local_keeps_to_its_window() -> None:
    shards = np.repeat(np.arange(12), 50).astype(np.int32)
    order = ShardLocal.of(shards, seed=1, window=3).stretch(0, 0, 600)
    for start in range(0, 600, 150):
        assert len(set(shards[order[start : start + 150]].tolist())) == 3
    companies = [ShardLocal.of(shards, seed=1, window=3).stretch(epoch, 0, 150) for epoch in range(5)]
    assert len({frozenset(shards[company].tolist()) for company in companies}) > 1


def test_weights_are_chances() -> None:
    counts = Counter(Weighted.of(np.array([1.0, 0.0, 3.0]), 5, 40_000).stretch(0, 0, 40_000).tolist())
    assert counts[1] == 0
    assert counts[2] / counts[0] == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize("weights", [[-1.0, 2.0], [0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_impossible_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(ConfigError, match="weights"):
        Weighted.of(np.array(weights))


def test_classes_are_equally_frequent_and_their_samples_too() -> None:
    labels = np.array([0] * 90 + [1] * 9 + [2])
    order = Balanced.of(labels, seed=2, num_samples=300).stretch(4, 0, 300)
    assert Counter(labels[order].tolist()) == {0: 100, 1: 100, 2: 100}
    times = Counter(order.tolist())
    assert {times[sample] for sample in range(90, 99)} <= {11, 12}
    assert len(set(order[labels[order] == 0].tolist())) == 90


def test_labels_may_be_a_plain_list() -> None:
    labels = [0, 1, 1, 2, 1]
    assert np.array_equal(
        Balanced.of(labels, 3).stretch(1, 0, 5), Balanced.of(np.array(labels), 3).stretch(1, 0, 5)
    )


@pytest.mark.parametrize("count", [4, 6])
def test_weights_and_labels_of_other_samples_are_refused(count: int) -> None:
    for order in (Weighted.of(np.ones(count)), Balanced.of(np.arange(count) % 2, num_samples=5)):
        check_choices(order, count)
        with pytest.raises(ConfigError, match=f"chooses from {count} samples, and the split has 5"):
            check_choices(order, 5)


def test_an_order_that_knows_of_no_choices_may_have_any_length() -> None:
    check_choices(Shuffled(3), 5)


def test_shard_local_batches_are_as_mixed_as_the_store_is() -> None:
    """The figures of docs/loader.md: half the summed difference of class shares in a batch and in the split."""
    size, num_shards, num_classes, batch = 32_000, 64, 8, 64
    shards = np.repeat(np.arange(num_shards), size // num_shards).astype(np.int32)
    labels = {
        "mixed": np.random.default_rng(0).permutation(np.arange(size) % num_classes),
        "sorted": np.arange(size) * num_classes // size,
    }

    def distance(order: Order, kind: str) -> float:
        batches = labels[kind][order.stretch(0, 0, size)].reshape(-1, batch)
        shares = np.stack([(batches == label).mean(axis=1) for label in range(num_classes)])
        return float(np.abs(shares - 1 / num_classes).sum(axis=0).mean() / 2)

    local, everywhere = ShardLocal.of(shards), Shuffled(size)
    assert distance(everywhere, "mixed") == pytest.approx(0.13, abs=0.01)
    assert distance(local, "mixed") == pytest.approx(0.13, abs=0.01)
    assert distance(local, "sorted") == pytest.approx(0.24, abs=0.02)
