"""Length buckets: every sample once, batches of similar length, any stretch without the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.loader.buckets import WINDOW_BATCHES, Bucketed
from flatout.loader.local import ShardLocal
from flatout.loader.order import Balanced, Order, Sequential, Shuffled
from flatout.seeding import child_seed
from flatout.types import Array


def lengths_of(size: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(1, 50, size)


def bucketed(size: int, total: int, seed: int | None = 3, inner: Order | None = None) -> Bucketed:
    return Bucketed(inner or Shuffled(size, 3), lengths_of(size), total, seed, "name")


@given(st.integers(1, 700), st.integers(1, 9), st.integers(0, 5), st.data())
def test_a_stretch_is_a_stretch_of_the_epoch(size: int, total: int, epoch: int, data: st.DataObject) -> None:
    order = bucketed(size, total)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    whole = order.stretch(epoch, 0, size)
    assert sorted(whole.tolist()) == list(range(size))
    assert order.stretch(epoch, start, stop).tolist() == whole[start:stop].tolist()


@given(st.integers(1, 700), st.integers(1, 9), st.integers(0, 5), st.none() | st.integers(0, 2**64 - 1))
@settings(max_examples=50)
def test_windows_are_sorted_cut_and_their_batches_shuffled(
    size: int, total: int, epoch: int, seed: int | None
) -> None:
    """Against a model that knows nothing of arrays."""
    order, lengths = bucketed(size, total, seed), lengths_of(size).tolist()
    plain = Shuffled(size, 3).stretch(epoch, 0, size).tolist()
    found = order.stretch(epoch, 0, size).tolist()
    num_full = size // total * total
    assert found[num_full:] == plain[num_full:]
    for start in range(0, num_full, WINDOW_BATCHES * total):
        stop = min(start + WINDOW_BATCHES * total, num_full)
        ordered = sorted(plain[start:stop], key=lambda at: lengths[at])
        wanted = [ordered[at : at + total] for at in range(0, stop - start, total)]
        batches = [found[at : at + total] for at in range(start, stop, total)]
        assert sorted(batches) == sorted(wanted)
        if seed is None:
            assert batches == wanted


def test_batches_come_in_another_order_in_each_epoch_and_window() -> None:
    size, total = 4 * WINDOW_BATCHES * 4, 4
    order, lengths = bucketed(size, total), lengths_of(size)
    seen = set()
    for epoch in range(2):
        longest = lengths[order.stretch(epoch, 0, size)].reshape(-1, WINDOW_BATCHES, total).max(axis=2)
        assert all((row[1:] < row[:-1]).any() for row in longest)
        seen |= {tuple(np.argsort(row, kind="stable").tolist()) for row in longest}
    assert len(seen) == 8


def test_another_seed_keeps_the_company_and_changes_the_turns() -> None:
    one, other = (bucketed(640, 4, seed).stretch(0, 0, 640).reshape(-1, 4).tolist() for seed in (1, 2))
    assert one != other
    assert sorted(one) == sorted(other)


@pytest.mark.parametrize(
    "inner",
    [
        Sequential(300),
        ShardLocal.of(np.repeat(np.arange(10), 30).astype(np.int32), 1, window=2),
        Balanced.of(np.arange(300) % 3, 2, 450),
    ],
)
def test_any_order_keeps_its_samples(inner: Order) -> None:
    order = bucketed(300, 7, inner=inner)
    assert order.num_samples == inner.num_samples
    size = inner.num_samples
    assert sorted(order.stretch(1, 0, size)) == sorted(inner.stretch(1, 0, size))


def test_batches_hardly_differ_in_length() -> None:
    lengths = np.random.default_rng(0).integers(10, 2000, 20_000)
    order = Bucketed(Shuffled(20_000, 0), lengths, 64, child_seed(0, "x"), "name")
    rows = lengths[order.stretch(0, 0, 19_968)].reshape(-1, 64)
    assert 1 - rows.sum() / (rows.max(axis=1) * 64).sum() < 0.03
    plain = lengths[Shuffled(20_000, 0).stretch(0, 0, 19_968)].reshape(-1, 64)
    assert 1 - plain.sum() / (plain.max(axis=1) * 64).sum() > 0.4
