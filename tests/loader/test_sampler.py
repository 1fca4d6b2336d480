"""OrderSampler: the fast loader's order, handed to an ordinary DataLoader."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from flatout.loader.loader import FastDataLoader
from flatout.loader.order import Sequential, Shuffled
from flatout.loader.sampler import OrderSampler
from flatout.store import StoreReader


def batches(sampler: OrderSampler, batch_size: int, drop_last: bool = False) -> list[list[int]]:
    data = TensorDataset(torch.arange(1000))
    loader: Any = DataLoader(data, batch_size=batch_size, sampler=sampler, drop_last=drop_last)
    found = [batch[0].tolist() for batch in loader]
    assert len(found) == len(loader)
    return found


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_rank_gets_the_fast_loaders_batches(store: StoreReader, world: int, drop_last: bool) -> None:
    keys = store.numbers["key_hash"].view("int64")
    for rank in range(world):
        shared: dict[str, Any] = {"drop_last": drop_last, "rank": rank, "world_size": world}
        fast = FastDataLoader(store, 10, shuffle=True, seed=3, num_workers=0, **shared)
        sampler = OrderSampler(Shuffled(len(store), 3), 10, **shared)
        for _ in range(2):
            wanted = [batch["key"].tolist() for batch in fast]
            assert [keys[batch].tolist() for batch in batches(sampler, 10, drop_last)] == wanted


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 4), st.booleans(), st.integers(0, 5))
def test_ranks_together_see_every_sample(
    num_samples: int, batch_size: int, world: int, drop_last: bool, epoch: int
) -> None:
    seen: list[int] = []
    lengths = set()
    for rank in range(world):
        sampler = OrderSampler(Shuffled(num_samples), batch_size, drop_last, rank, world)
        sampler.set_epoch(epoch)
        mine = list(sampler)
        assert len(mine) == len(sampler)
        lengths.add(len(mine))
        seen += mine
    assert len(lengths) == 1
    if drop_last:
        assert len(seen) == len(set(seen)) == num_samples // (batch_size * world) * batch_size * world
    else:
        assert set(seen) == set(range(num_samples))


def test_epochs_follow_one_another_unless_told() -> None:
    sampler = OrderSampler(Shuffled(50), 10)
    first, second = list(sampler), list(sampler)
    assert first != second
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(sampler) == second


def test_lightning_leaves_it_in_place() -> None:
    sampler = OrderSampler(Sequential(5), 2, rank=0, world_size=1)
    assert isinstance(sampler, DistributedSampler)
    assert batches(sampler, 2) == [[0, 1], [2, 3], [4]]
