"""The padding share that is computed is the one of the batches that come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.loader.epochs import loader_of
from tests.loader.ragged_items import RAGGED_FIELDS

from flatout.loader.fetch import ReadRule
from flatout.loader.lengths import RaggedRule, length_axis
from flatout.loader.order import Shuffled
from flatout.loader.padding import plain_rows
from flatout.store import StoreReader


def counted(store: StoreReader, batches: Any, most: int | None) -> float:
    """By looking at every cell of every ragged field."""
    shapes = {key: {} for key in store.numbers["key_hash"].view(np.int64).tolist()}
    for at, key in enumerate(shapes):
        shapes[key] = {name: value.shape for name, value in store.read(at).items()}
    filled = total = 0
    for batch in batches:
        for name in (*RAGGED_FIELDS, "words"):
            axis = length_axis(store.fields[name])
            total += batch[name].numel()
            for key in batch["key"].tolist():
                shape = list(shapes[key][name])
                shape[axis] = min(shape[axis], most or shape[axis])
                filled += int(np.prod(shape))
    return 1 - filled / total


@pytest.mark.parametrize(
    "how", [{}, {"length_buckets": True}, {"max_tokens": 120}, {"world_size": 2, "rank": 1}]
)
@pytest.mark.parametrize("most", [None, 15])
def test_it_is_what_one_counts(ragged_store: StoreReader, how: dict[str, Any], most: int | None) -> None:
    rule = ReadRule(ragged=RaggedRule(max_length=most, multiple=4))
    loader = loader_of(ragged_store, 8, read=rule, **how)
    loader.set_epoch(2)
    share = loader.padding_share()
    assert share == loader.padding_share(2)
    assert share == pytest.approx(counted(ragged_store, loader, most))


def test_buckets_save_padding(ragged_store: StoreReader) -> None:
    for how in ({"length_buckets": True}, {"max_tokens": 120}):
        loader = loader_of(ragged_store, 8, **how)
        assert loader.padding_share() < loader.padding_share(without_buckets=True)
    plain = loader_of(ragged_store, 8)
    assert plain.padding_share(without_buckets=True) == plain.padding_share()


def test_the_same_sizes_in_the_plain_order() -> None:
    rows, sizes = plain_rows(Shuffled(10, 3), 1, np.array([4, 4, 4]))
    assert sizes.tolist() == [4, 4]
    assert rows.tolist() == Shuffled(10, 3).stretch(1, 0, 8).tolist()
