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


def test_ranks_that_are_known_later_are_looked_at_then(
    steps_store: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state may be loaded before the process group is made: as one rank it would have no room."""
    state = loader_of(steps_store, max_tokens=100, rank=0, world_size=4).state_dict()
    loader = loader_of(steps_store, max_tokens=100)
    loader.load_state_dict(state)
    with monkeypatch.context() as patch:
        patch.setattr("flatout.loader.loader.rank_and_world", lambda *_: (3, 4))
        wanted = loader_of(steps_store, max_tokens=100, rank=3, world_size=4)
        for batch, other in zip(loader, wanted, strict=True):
            assert batch["key"].tolist() == other["key"].tolist()
    loader.load_state_dict(state)
    for _ in range(2):
        with pytest.raises(LoaderStateError, match="planned for 4 ranks with max_tokens 100; on 1 a batch"):
            next(iter(loader))


def test_batches_of_another_size_than_asked_for_are_said_once(
    store: StoreReader, caplog: pytest.LogCaptureFixture
) -> None:
    state = loader_of(store, 4, rank=0, world_size=4).state_dict()
    for batch_size, rank, world, num_said in (
        (4, 0, 1, 1),
        (8, 0, 2, 0),
        (4, 0, 2, 1),
        (4, 1, 2, 0),
        (16, 0, 1, 0),
    ):
        caplog.clear()
        loader = loader_of(store, batch_size, rank=rank, world_size=world)
        loader.load_state_dict(state)
        assert not caplog.messages
        for _ in range(2):
            next(iter(loader))
        words = (
            f"16 samples for all ranks together: up to {16 // world} on each of {world}, and batch_size is 4"
        )
        assert [text for text in caplog.messages if words in text] == caplog.messages
        assert len(caplog.messages) == num_said
