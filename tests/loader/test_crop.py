"""Random crops follow from seed, epoch and key: nothing else can change them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loader.epochs import SEED, loader_of
from tests.loader.ragged_items import mixed, start_of

from flatout.loader.crop import crop_seed, crop_starts
from flatout.loader.fetch import ReadRule
from flatout.loader.lengths import RaggedRule
from flatout.store import StoreReader

MOST = 6
RULE = RaggedRule(max_length=MOST, crop="random")


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**31))), st.integers(0, 2**64 - 1))
def test_starts_are_the_models(pairs: list[tuple[int, int]], seed: int) -> None:
    keys = np.array([key for key, _ in pairs], np.uint64)
    spare = np.array([spare for _, spare in pairs], np.int64)
    wanted = [(mixed(key ^ seed) >> 32) * (spare + 1) >> 32 for key, spare in pairs]
    assert crop_starts("random", keys, spare, seed).tolist() == wanted
    assert all(0 <= start <= most for start, most in zip(wanted, spare.tolist(), strict=True))
    assert crop_starts("head", keys, spare, seed).tolist() == [0] * len(pairs)
    assert crop_starts("tail", keys, spare, seed).tolist() == spare.tolist()


def test_every_start_is_equally_likely() -> None:
    keys = np.random.default_rng(3).integers(0, 2**64, 70_000, np.uint64)
    counts = np.bincount(crop_starts("random", keys, np.full(len(keys), 6), crop_seed(0, 1)), minlength=7)
    assert len(counts) == 7
    assert abs(counts / 10_000 - 1).max() < 0.05


def test_epochs_and_seeds_differ() -> None:
    keys, spare = np.arange(50, dtype=np.uint64), np.full(50, 1000)
    found = {
        tuple(crop_starts("random", keys, spare, crop_seed(seed, epoch)).tolist())
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(found) == 4


def starts_in(batch: Any) -> dict[int, int]:
    """Key -> first step of each sample of a batch: column 0 of `steps` counts."""
    return dict(zip(batch["key"].tolist(), batch["steps"][:, 0, 0].int().tolist(), strict=True))


@given(
    st.integers(1, 40),
    st.integers(0, 2),
    st.sampled_from([(1, 0), (2, 0), (2, 1), (3, 2)]),
    st.integers(0, 3),
    st.sampled_from([{}, {"length_buckets": True}, {"max_tokens": 60}, {"shuffle": False}]),
    st.integers(0, 6),
)
@settings(deadline=None, max_examples=40)
def test_nothing_but_seed_epoch_and_key_decides(
    steps_store: StoreReader,
    batch_size: int,
    num_workers: int,
    ranks: tuple[int, int],
    epoch: int,
    form: dict[str, Any],
    stop: int,
) -> None:
    keys = steps_store.numbers["key_hash"]
    lengths = steps_store.numbers["length_steps"] // 3
    seed = crop_seed(SEED, epoch)
    pairs = zip(keys.tolist(), lengths.tolist(), strict=True)
    wanted = {int(np.uint64(key).view(np.int64)): start_of(RULE, key, length, seed) for key, length in pairs}
    made: dict[str, Any] = {"world_size": ranks[0], "rank": ranks[1], "num_workers": num_workers, **form}
    made["read"] = ReadRule(ragged=RULE)
    first = loader_of(steps_store, batch_size, **made)
    first.set_epoch(epoch)
    for _, batch in zip(range(min(stop, len(first) - 1)), first, strict=False):
        assert starts_in(batch).items() <= wanted.items()
    state = first.state_dict()
    first.close()
    resumed = loader_of(steps_store, batch_size, **made)
    resumed.load_state_dict(state)
    resumed.set_epoch(epoch)
    for batch in resumed:
        assert starts_in(batch).items() <= wanted.items()
    resumed.close()


def test_fields_of_one_length_are_cut_alike(ragged_store: StoreReader) -> None:
    loader = loader_of(ragged_store, 16, read=ReadRule(ragged=RULE))
    position_of = {key: at for at, key in enumerate(ragged_store.numbers["key_hash"].view(np.int64).tolist())}
    for batch in loader:
        for row, (key, start) in enumerate(starts_in(batch).items()):
            coded = ragged_store.read(position_of[key])["coded"][start : start + MOST]
            np.testing.assert_array_equal(batch["coded"][row, : len(coded)].numpy(), coded)


@pytest.mark.parametrize("crop", ["head", "tail"])
def test_head_and_tail_are_the_same_in_every_epoch(ragged_store: StoreReader, crop: Any) -> None:
    rule = ReadRule(ragged=RaggedRule(max_length=MOST, crop=crop))
    loader = loader_of(ragged_store, 16, read=rule)
    epochs = [{key: start for batch in loader for key, start in starts_in(batch).items()} for _ in range(2)]
    assert epochs[0] == epochs[1]
    assert any(epochs[0].values()) == (crop == "tail")
