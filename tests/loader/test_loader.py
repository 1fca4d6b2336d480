"""FastDataLoader: exact samples in exact order, resumable anywhere, on any number of ranks."""

from __future__ import annotations

import gc
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loader.breaking import make_store
from tests.loader.epochs import producers

from flatout.errors import ConfigError, LoaderStateError
from flatout.loader.loader import FastDataLoader
from flatout.loader.order import Weighted
from flatout.store import StoreReader

NUM_ITEMS = 103


def keys_of(batches: Any) -> list[int]:
    return [key for batch in batches for key in batch["key"].tolist()]


def valid_keys(batch: dict[str, torch.Tensor]) -> list[int]:
    keys = batch["key"]
    return (keys[batch["valid"]] if "valid" in batch else keys).tolist()


def loader_of(store: StoreReader, batch_size: int = 8, **settings: Any) -> FastDataLoader:
    return FastDataLoader(store, batch_size, **{"shuffle": True, "seed": 5, "num_workers": 0, **settings})


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_every_field_of_every_sample_is_the_stores(store: StoreReader, num_workers: int) -> None:
    position_of = {int(key): at for at, key in enumerate(store.numbers["key_hash"].view(np.int64))}
    seen = []
    for batch in loader_of(store, num_workers=num_workers):
        for row, key in enumerate(batch["key"].tolist()):
            sample = store.read(position_of[key])
            seen.append(key)
            for name in ("image", "small", "half", "packed", "label"):
                np.testing.assert_array_equal(batch[name][row].numpy(), sample[name])
                assert batch[name].dtype == torch.from_numpy(sample[name]).dtype
            np.testing.assert_allclose(batch["coded"][row].numpy(), sample["coded"], rtol=1e-6)
            length = int(batch["series_length"][row])
            np.testing.assert_array_equal(batch["series"][row, :length].numpy(), sample["series"])
            assert not batch["series"][row, length:].any()
    assert sorted(seen) == sorted(position_of)


@given(st.integers(1, 40), st.integers(0, 2), st.booleans())
@settings(deadline=None, max_examples=20)
def test_the_order_depends_on_seed_and_epoch_alone(
    store: StoreReader, batch_size: int, num_workers: int, drop_last: bool
) -> None:
    loader = loader_of(store, batch_size, num_workers=num_workers, drop_last=drop_last)
    loader.set_epoch(3)
    wanted = keys_of(_epoch(store, 3))
    found = keys_of(loader)
    assert found == wanted[: len(found)]
    assert len(found) == (NUM_ITEMS // batch_size * batch_size if drop_last else NUM_ITEMS)
    loader.close()


def _epoch(store: StoreReader, epoch: int) -> FastDataLoader:
    whole = loader_of(store, NUM_ITEMS)
    whole.set_epoch(epoch)
    return whole


@given(st.integers(1, 30), st.lists(st.integers(0, 40), min_size=1, max_size=3), st.integers(0, 2))
@settings(deadline=None, max_examples=60)
def test_stopped_anywhere_and_resumed_it_gives_the_rest(
    store: StoreReader, batch_size: int, stops: list[int], num_workers: int
) -> None:
    """The resume law: any stop points, several in one epoch, over epoch edges."""
    straight = loader_of(store, batch_size)
    wanted = keys_of([*straight, *straight, *straight])
    found: list[int] = []
    state: dict[str, Any] | None = None
    for stop in [*stops, 10**6]:
        loader = loader_of(store, batch_size, num_workers=num_workers)
        if state is not None:
            loader.load_state_dict(pickle.loads(pickle.dumps(state)))
        while len(found) < len(wanted):
            for batch in loader:
                found += batch["key"].tolist()
                stop -= 1
                if stop < 0 or len(found) >= len(wanted):
                    break
            if stop < 0:
                break
        state = loader.state_dict()
        loader.close()
    assert found == wanted[: len(found)]
    assert len(found) >= len(wanted)


@given(
    st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 6), st.integers(0, 20)
)
@settings(deadline=None, max_examples=60)
def test_other_ranks_continue_what_some_began(
    store: StoreReader, before: int, after: int, batch_size: int, stop: int
) -> None:
    """Elastic: the rest of the epoch is exactly the unseen samples, in the same global batches."""
    ranks = [loader_of(store, batch_size, rank=r, world_size=before) for r in range(before)]
    streams = [iter(loader) for loader in ranks]
    total = batch_size * before
    if total < after:
        return
    seen: list[int] = []
    for _ in range(min(stop, len(ranks[0]))):
        seen += [key for stream in streams for key in valid_keys(next(stream))]
    rest: list[int] = []
    for rank in range(after):
        loader = loader_of(store, 1, rank=rank, world_size=after)
        loader.load_state_dict(ranks[0].state_dict())
        if len(seen) < NUM_ITEMS:
            rest += [key for batch in loader for key in valid_keys(batch)]
    wanted = keys_of(_epoch(store, 0))
    assert seen == wanted[: len(seen)]
    assert sorted(rest) == sorted(wanted[len(seen) :])


def test_a_break_starts_the_next_epoch(store: StoreReader) -> None:
    loader = loader_of(store, num_workers=2)
    for _ in loader:
        break
    assert keys_of(loader) == keys_of(_epoch(store, 1))
    assert keys_of(loader) == keys_of(_epoch(store, 2))


def test_two_iterators_at_once_are_two_epochs(store: StoreReader) -> None:
    loader = loader_of(store, num_workers=2)
    pairs = list(zip(loader, loader, strict=True))
    assert keys_of(first for first, _ in pairs) == keys_of(_epoch(store, 0))
    assert keys_of(second for _, second in pairs) == keys_of(_epoch(store, 1))


def test_iter_does_nothing_before_next(store: StoreReader) -> None:
    loader = loader_of(store, num_workers=2)
    before = threading.active_count()
    iter(loader)
    iter(loader)
    assert threading.active_count() == before
    assert keys_of(loader) == keys_of(_epoch(store, 0))


def test_a_dropped_loader_leaves_no_thread(store: StoreReader) -> None:
    before = producers()
    loader = loader_of(store, num_workers=3)
    stream = iter(loader)
    next(stream)
    mine = producers() - before
    assert len(mine) == 3
    del stream, loader
    gc.collect()
    assert not mine & producers()


def test_batches_held_are_never_overwritten(store: StoreReader) -> None:
    """Tensors, slices, NumPy views, DLPack and autograd graphs keep a buffer from being used again."""
    loader = loader_of(store, 4, num_workers=2)
    held = []
    for _ in range(3):
        for at, batch in enumerate(loader):
            value = batch["image"]
            weight = torch.ones_like(value).requires_grad_()
            holders = (value, value[:, 1:], value.numpy()[:2], torch.from_dlpack(value), (weight * value).sum())
            held.append((holders[at % 5], weight, value.clone(), at % 5))
    gc.collect()
    for holder, weight, copy, kind in held:
        if kind == 4:
            assert torch.equal(torch.autograd.grad(holder, weight)[0], copy)
        else:
            wanted = (copy, copy[:, 1:], copy[:2], copy)[kind]
            assert torch.equal(torch.as_tensor(holder), wanted)


def test_buffers_are_used_again(store: StoreReader) -> None:
    loader = loader_of(store, 4)
    addresses = {batch["image"].data_ptr() for _ in range(5) for batch in loader}
    assert len(addresses) <= 4 * 3  # three batches share a buffer


def test_the_state_of_other_data_is_refused(store: StoreReader) -> None:
    state = loader_of(store).state_dict()
    for change in ({"seed": 6}, {"store": "0"}, {"num_samples": 5}, {"order": "sequential"}, {"version": 0}):
        with pytest.raises(LoaderStateError):
            loader_of(store).load_state_dict({**state, **change})
    with pytest.raises(LoaderStateError):
        loader_of(store).load_state_dict({})


def test_state_at_the_end_is_the_next_epoch(store: StoreReader) -> None:
    loader = loader_of(store)
    states = [loader.state_dict() for _ in loader]
    resumed = loader_of(store)
    resumed.load_state_dict(states[-1])
    assert keys_of(resumed) == keys_of(_epoch(store, 1))


def test_set_epoch_keeps_a_loaded_position_only_for_its_own_epoch(store: StoreReader) -> None:
    loader = loader_of(store)
    stream = iter(loader)
    first = [next(stream), next(stream)]
    state = loader.state_dict()
    for epoch, wanted in (
        (0, keys_of(_epoch(store, 0))[len(keys_of(first)) :]),
        (1, keys_of(_epoch(store, 1))),
    ):
        resumed = loader_of(store)
        resumed.load_state_dict(state)
        resumed.sampler.set_epoch(epoch)
        assert keys_of(resumed) == wanted


def test_a_missing_split_is_named(store: StoreReader) -> None:
    with pytest.raises(ConfigError, match="no samples in split 'holdout'"):
        FastDataLoader(store, split="holdout")


def test_a_split_has_its_own_samples(store: StoreReader) -> None:
    found = {split: set(keys_of(FastDataLoader(store, 8, split=split))) for split in store.meta.splits}
    assert sum(len(keys) for keys in found.values()) == NUM_ITEMS
    assert set.union(*found.values()) == set(store.numbers["key_hash"].view(np.int64).tolist())


def test_it_travels_by_pickle(store: StoreReader) -> None:
    loader = loader_of(store, num_workers=1)
    next(iter(loader))
    copy = pickle.loads(pickle.dumps(loader))
    assert keys_of(copy) == keys_of(loader)


def test_weights_of_the_whole_store_are_refused_for_a_split(prepared: dict[str, Any]) -> None:
    store = StoreReader(prepared["preprocessed_data_dir"])
    with pytest.raises(ConfigError, match=rf"chooses from {len(store)} samples, and the split has"):
        FastDataLoader(store, split="train", order=Weighted.of(np.ones(len(store))))
    loader = FastDataLoader(store, split="train", order=Weighted.of(np.ones(len(store.positions("train")))))
    assert len(keys_of(loader)) == len(store.positions("train"))


def test_it_is_called_like_a_dataloader(store: StoreReader) -> None:
    """Data, batch size, shuffle: in torch's own order."""
    assert keys_of(FastDataLoader(store, 8, True, seed=5)) == keys_of(_epoch(store, 0))


@pytest.mark.parametrize(
    ("given_as", "says"),
    [
        ({"batch_size": 2.5}, "batch_size 2.5: a whole number"),
        ({"batch_size": "16"}, "batch_size '16': a whole number"),
        ({"order": "shuffled"}, "order 'shuffled': names are for configs"),
        ({"num_workers": -1}, "num_workers -1: at least 0"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(tmp_path: Path, given_as: dict[str, Any], says: str) -> None:
    store = make_store(tmp_path / "store", ("image",))
    with pytest.raises(ConfigError, match=says):
        FastDataLoader(store, **given_as)
