"""Ten million samples: epochs and resume points are arithmetic, counted in places evaluated, never timed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loader.epochs import SEED

from flatout.loader import permutation
from flatout.loader.batches import BLOCK
from flatout.loader.loader import FastDataLoader
from flatout.loader.order import Shuffled
from flatout.store import StoreReader

NUM_SAMPLES = 10_000_000
BATCH = 64


class Large:
    """An epoch of ten million over the few samples of a store; counts the places it is asked for."""

    name = "large"
    num_samples = NUM_SAMPLES

    def __init__(self, size: int) -> None:
        self._order = Shuffled(NUM_SAMPLES, SEED)
        self._size = size
        self.num_evaluated = 0

    def stretch(self, epoch: int, start: int, stop: int) -> Any:
        self.num_evaluated += stop - start
        return self._order.stretch(epoch, start, stop) % self._size


def loader_and_order(store: StoreReader, num_workers: int = 0) -> tuple[FastDataLoader, Large]:
    order = Large(len(store))
    return FastDataLoader(store, BATCH, order=order, seed=SEED, num_workers=num_workers), order


def wanted(store: StoreReader, epoch: int, batch: int) -> list[int]:
    stop = min((batch + 1) * BATCH, NUM_SAMPLES)
    positions = Large(len(store)).stretch(epoch, batch * BATCH, stop)
    found: list[int] = store.numbers["key_hash"].view(np.int64)[positions].tolist()
    return found


@given(st.integers(0, 1000))
@settings(max_examples=20)
def test_the_first_batch_of_an_epoch_costs_one_block(store: StoreReader, epoch: int) -> None:
    loader, order = loader_and_order(store)
    assert len(loader) == NUM_SAMPLES // BATCH
    loader.set_epoch(epoch)
    stream = iter(loader)
    assert order.num_evaluated == 0
    assert next(stream)["key"].tolist() == wanted(store, epoch, 0)
    assert order.num_evaluated <= BLOCK


@given(st.integers(0, 1000), st.integers(0, NUM_SAMPLES // BATCH - 1))
@settings(max_examples=30)
def test_resuming_anywhere_costs_a_block_or_two(store: StoreReader, epoch: int, batch: int) -> None:
    loader, order = loader_and_order(store)
    loader.load_state_dict({**loader.state_dict(), "epoch": epoch, "samples": batch * BATCH})
    assert order.num_evaluated == 0
    assert next(iter(loader))["key"].tolist() == wanted(store, epoch, batch)
    assert order.num_evaluated <= 2 * BLOCK


def test_producers_evaluate_only_what_they_make_ahead(store: StoreReader) -> None:
    loader, order = loader_and_order(store, num_workers=2)
    loader.load_state_dict({**loader.state_dict(), "epoch": 3, "samples": 5_000_000})
    stream = iter(loader)
    assert next(stream)["key"].tolist() == wanted(store, 3, 5_000_000 // BATCH)
    del stream
    assert order.num_evaluated <= 4 * BLOCK


def test_a_stretch_evaluates_little_more_than_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The permutation walks on where it leaves the range, which it seldom does."""
    cells: list[int] = []
    shuffled = permutation._Grid.shuffled

    def counted(grid: Any, values: Any) -> Any:
        cells.append(len(values))
        return shuffled(grid, values)

    monkeypatch.setattr(permutation._Grid, "shuffled", counted)
    for start in (0, 4_999_999, NUM_SAMPLES - BLOCK):
        cells.clear()
        assert len(Shuffled(NUM_SAMPLES, SEED).stretch(9, start, start + BLOCK)) == BLOCK
        assert sum(cells) < 1.01 * BLOCK
