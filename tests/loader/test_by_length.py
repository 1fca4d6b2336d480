"""FastDataLoader with length buckets and with batches by tokens: the laws of every loader hold."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loader.epochs import keys_of, loader_of
from tests.loader.ragged_items import NUM_RAGGED

from flatout.errors import ConfigError, LoaderStateError
from flatout.loader.fetch import ReadRule
from flatout.loader.lengths import RaggedRule, padded_lengths
from flatout.loader.loader import FastDataLoader
from flatout.store import StoreReader

FORMS: list[dict[str, Any]] = [{"length_buckets": True}, {"max_tokens": 100}]
form = st.sampled_from(FORMS)


def valid_keys(batch: dict[str, torch.Tensor]) -> list[int]:
    keys = batch["key"]
    found: list[int] = (keys[batch["valid"]] if "valid" in batch else keys).tolist()
    return found


def all_keys(store: StoreReader) -> list[int]:
    return sorted(store.numbers["key_hash"].view(np.int64).tolist())


@given(form, st.integers(1, 30), st.integers(0, 2), st.integers(0, 3))
@settings(deadline=None, max_examples=30)
def test_every_sample_once_an_epoch(
    steps_store: StoreReader, how: dict[str, Any], batch_size: int, num_workers: int, epoch: int
) -> None:
    loader = loader_of(steps_store, batch_size, num_workers=num_workers, **how)
    loader.set_epoch(epoch)
    batches = list(loader)
    assert len(batches) == len(loader)
    assert sorted(keys_of(batches)) == all_keys(steps_store)
    loader.close()


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("most", [None, 20])
def test_no_field_of_a_batch_exceeds_the_tokens(
    ragged_store: StoreReader, multiple: int, most: int | None
) -> None:
    rule = ReadRule(ragged=RaggedRule(max_length=most, multiple=multiple))
    loader = loader_of(ragged_store, max_tokens=100, read=rule)
    for batch in [*loader, *loader]:
        rows = len(batch["key"])
        for name in ("steps", "coded", "half", "packed", "words"):
            assert rows * batch[name].shape[1] <= 100
        assert rows * batch["wave"].shape[2] <= 100
    longest = int(padded_lengths(ragged_store, np.arange(NUM_RAGGED), rule.ragged).max())
    with pytest.raises(ConfigError, match="Raise max_tokens"):
        loader_of(ragged_store, max_tokens=longest - 1, read=rule)


def test_the_sample_that_is_too_long_is_named(steps_store: StoreReader) -> None:
    longest = int(np.argmax(padded_lengths(steps_store, np.arange(NUM_RAGGED), RaggedRule())))
    with pytest.raises(ConfigError, match=f"sample '{steps_store.keys()[longest]}'"):
        loader_of(steps_store, max_tokens=10)
    cut = ReadRule(ragged=RaggedRule(max_length=10))
    assert keys_of(loader_of(steps_store, max_tokens=10, read=cut))


@given(form, st.integers(1, 30), st.lists(st.integers(0, 60), min_size=1, max_size=3), st.integers(0, 2))
@settings(deadline=None, max_examples=15)
def test_stopped_anywhere_and_resumed_it_gives_the_rest(
    steps_store: StoreReader, how: dict[str, Any], batch_size: int, stops: list[int], num_workers: int
) -> None:
    straight = loader_of(steps_store, batch_size, **how)
    wanted = keys_of([*straight, *straight, *straight])
    found: list[int] = []
    state: dict[str, Any] | None = None
    for stop in [*stops, 10**6]:
        loader = loader_of(steps_store, batch_size, num_workers=num_workers, **how)
        if state is not None:
            loader.load_state_dict(pickle.loads(pickle.dumps(state)))
        while len(found) < len(wanted) and stop >= 0:
            for batch in loader:
                found += batch["key"].tolist()
                stop -= 1
                if stop < 0 or len(found) >= len(wanted):
                    break
        state = loader.state_dict()
        loader.close()
    assert found == wanted[: len(found)]
    assert len(found) >= len(wanted)


@given(form, st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([1, 2, 3, 4, 8]), st.integers(0, 30))
@settings(deadline=None, max_examples=30)
def test_other_ranks_continue_what_some_began(
    steps_store: StoreReader, how: dict[str, Any], before: int, after: int, stop: int
) -> None:
    """The rest of the epoch is exactly the unseen samples, in the same global batches."""
    ranks = [loader_of(steps_store, 8, rank=rank, world_size=before, **how) for rank in range(before)]
    assert len({len(loader) for loader in ranks}) == 1
    whole = [[key for batch in step for key in valid_keys(batch)] for step in zip(*ranks, strict=True)]
    assert sorted(key for step in whole for key in step) == all_keys(steps_store)
    ranks[0].set_epoch(0)
    for _, _ in zip(range(stop := min(stop, len(whole) - 1)), ranks[0], strict=False):
        pass
    state = ranks[0].state_dict()
    assert state["samples"] == sum(len(step) for step in whole[:stop])
    roomy = {"max_tokens": 8 * how["max_tokens"]} if "max_tokens" in how else how
    others = [loader_of(steps_store, 1, rank=rank, world_size=after, **roomy) for rank in range(after)]
    for loader in others:
        loader.load_state_dict(state)
    rest = [[key for batch in step for key in valid_keys(batch)] for step in zip(*others, strict=True)]
    assert rest == whole[stop:]


def test_fewer_ranks_with_too_few_tokens_are_refused(steps_store: StoreReader) -> None:
    state = loader_of(steps_store, max_tokens=100, rank=0, world_size=4).state_dict()
    fewer = loader_of(steps_store, max_tokens=100, rank=0, world_size=2)
    with pytest.raises(LoaderStateError, match="planned for 4 ranks with max_tokens 100; on 2 a batch"):
        fewer.load_state_dict(state)
    assert fewer.state_dict()["global_batch"] == 2
    more = loader_of(steps_store, max_tokens=100, rank=7, world_size=8)
    more.load_state_dict(state)
    assert more.state_dict()["global_batch"] == 4


def test_the_state_of_other_batches_is_refused(steps_store: StoreReader) -> None:
    shorter = ReadRule(ragged=RaggedRule(max_length=20))
    forms: list[dict[str, Any]] = [{}, *FORMS, *({**how, "read": shorter} for how in FORMS)]
    loaders = [loader_of(steps_store, **how) for how in forms]
    for loader in loaders:
        for other in loaders:
            if loader is other:
                other.load_state_dict(loader.state_dict())
            else:
                with pytest.raises(LoaderStateError, match="order"):
                    other.load_state_dict(loader.state_dict())


def test_a_state_inside_a_batch_is_refused(steps_store: StoreReader) -> None:
    loader = loader_of(steps_store, max_tokens=100)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(LoaderStateError, match="inside a batch"):
        loader.load_state_dict({**state, "samples": state["samples"] - 1})


def test_a_state_from_before_there_were_tokens_fits(steps_store: StoreReader) -> None:
    loader = loader_of(steps_store)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    del state["max_tokens"]
    other = loader_of(steps_store)
    other.load_state_dict(state)
    rest = keys_of(other)
    assert rest == keys_of(list(batches))
    assert 0 < len(rest) < NUM_RAGGED


def test_it_travels_by_pickle(steps_store: StoreReader) -> None:
    for how in FORMS:
        loader = loader_of(steps_store, **how)
        copy = pickle.loads(pickle.dumps(loader))
        assert keys_of(copy) == keys_of(loader)


def test_nothing_ragged_is_refused(steps_store: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"label": steps_store.fields["label"]}
    monkeypatch.setattr(steps_store, "fields", fields)
    with pytest.raises(ConfigError, match="there is none"):
        FastDataLoader(steps_store, length_buckets=True)


@pytest.mark.filterwarnings("ignore")
def test_lightning_sees_every_sample_in_every_epoch(steps_store: StoreReader, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    seen: list[list[int]] = [[], []]

    class Recorder(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            seen[self.current_epoch] += batch["key"].tolist()
            return self.weight.sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        default_root_dir=tmp_path, accelerator="cpu", max_epochs=2, enable_model_summary=False, **options
    )
    trainer.fit(Recorder(), loader_of(steps_store, max_tokens=100, num_workers=1))
    assert [sorted(epoch) for epoch in seen] == [all_keys(steps_store)] * 2
    assert seen[0] != seen[1]


@pytest.mark.parametrize("how", FORMS)
def test_fields_that_are_not_read_do_not_count(ragged_store: StoreReader, how: dict[str, Any]) -> None:
    """Batches are planned by what comes, and a long field that nobody reads makes no sample too long."""
    rule = ReadRule(fields=("words", "label"))
    loader = loader_of(ragged_store, 8, read=rule, **how)
    shares = [loader.padding_share(), loader.padding_share(without_buckets=True)]
    filled = total = 0
    for batch in loader:
        filled += int(batch["words_length"].sum())
        total += batch["words"].numel()
    assert shares[0] == pytest.approx(1 - filled / total)
    assert shares[0] < shares[1]
    assert len(loader_of(ragged_store, max_tokens=7, read=rule)) >= NUM_RAGGED // 7
    with pytest.raises(ConfigError, match="for ragged fields, and there is none"):
        loader_of(ragged_store, 8, read=ReadRule(fields=("label",)), **how)
