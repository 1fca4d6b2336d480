"""The state of an epoch fits the samples and the order that it was taken from, and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.loader.epochs import loader_of

from flatout.errors import LoaderStateError
from flatout.loader.local import ShardLocal
from flatout.loader.order import Balanced, Order, Sequential, Shuffled, Weighted
from flatout.store import StoreReader

SIZE = 103


def with_numbers(store: StoreReader, **changes: Any) -> StoreReader:
    """The same store, by a root of the same content hash, whose index says something else."""
    other = StoreReader(store.folder)
    other.numbers = {**store.numbers, **changes}
    return other


def test_the_same_samples_in_another_order_are_refused(store: StoreReader) -> None:
    state = loader_of(store).state_dict()
    turned = {name: column[::-1].copy() for name, column in store.numbers.items()}
    other = with_numbers(store, **turned)
    assert other.meta.content_hash == store.meta.content_hash
    with pytest.raises(LoaderStateError, match=r"has keys .*start without the state"):
        loader_of(other).load_state_dict(state)


def test_another_split_of_as_many_samples_is_refused(store: StoreReader) -> None:
    half = with_numbers(store, split=(np.arange(SIZE) % 2).astype(store.numbers["split"].dtype))
    half.meta = replace(store.meta, splits=("train", "val"))
    half.numbers["split"][-1] = 2
    half.meta = replace(half.meta, splits=("train", "val", "test"))
    train, val = (loader_of(half, split=split) for split in ("train", "val"))
    assert train.state_dict()["num_samples"] == val.state_dict()["num_samples"] == SIZE // 2
    with pytest.raises(LoaderStateError, match="has keys"):
        val.load_state_dict(train.state_dict())
    train.load_state_dict(train.state_dict())


LABELS = np.arange(SIZE) % 4
WEIGHTS = np.arange(1.0, SIZE + 1)
ORDERS: list[tuple[Order, Order]] = [
    (Shuffled(SIZE, 1), Shuffled(SIZE, 2)),
    (Weighted.of(WEIGHTS), Weighted.of(WEIGHTS[::-1])),
    (Weighted.of(WEIGHTS, 1), Weighted.of(WEIGHTS, 2)),
    (Balanced.of(LABELS), Balanced.of(LABELS[::-1])),
    (Balanced.of(LABELS), Balanced.of(LABELS // 2)),
    (ShardLocal.of(LABELS.astype(np.int32)), ShardLocal.of((LABELS // 2).astype(np.int32))),
    (Shuffled(SIZE, 1), Sequential(SIZE)),
]


@pytest.mark.parametrize("length_buckets", [False, True])
@pytest.mark.parametrize(("one", "other"), ORDERS)
def test_an_order_of_other_settings_is_refused(
    store: StoreReader, one: Order, other: Order, length_buckets: bool
) -> None:
    state = loader_of(store, order=one, length_buckets=length_buckets).state_dict()
    with pytest.raises(LoaderStateError, match="has order"):
        loader_of(store, order=other, length_buckets=length_buckets).load_state_dict(state)
    loader_of(store, order=one, length_buckets=length_buckets).load_state_dict(state)


@pytest.mark.parametrize("samples", [1, 9, 15, SIZE - 1])
def test_a_place_inside_a_batch_is_refused(store: StoreReader, samples: int) -> None:
    """Rounded up, the rest of that batch would never be seen."""
    loader = loader_of(store, 8)
    with pytest.raises(LoaderStateError, match="inside a batch"):
        loader.load_state_dict({**loader.state_dict(), "samples": samples})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"epoch": -1}, "of epoch -1"),
        ({"samples": -8}, "at sample -8"),
        ({"samples": SIZE + 8}, f"at sample {SIZE + 8} of {SIZE}"),
        ({"global_batch": 0}, "in batches of 0"),
        ({"samples": 8.0}, r"samples 8\.0: a whole number"),
        ({"epoch": "1"}, "epoch '1': a whole number"),
    ],
)
def test_what_no_loader_says_is_refused(store: StoreReader, change: dict[str, Any], reason: str) -> None:
    loader = loader_of(store, 8)
    with pytest.raises(LoaderStateError, match=reason):
        loader.load_state_dict({**loader.state_dict(), **change})


def test_more_ranks_than_a_global_batch_has_samples_are_refused(store: StoreReader) -> None:
    state = loader_of(store, 4).state_dict()
    with pytest.raises(LoaderStateError, match=r"has 4 samples a batch.*too few for 8 ranks\. Use 4 ranks"):
        loader_of(store, 4, rank=0, world_size=8).load_state_dict(state)
    loader_of(store, 4, rank=3, world_size=4).load_state_dict(state)
