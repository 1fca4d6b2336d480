"""A loader hands each batch and its epoch over to an augmentation, whatever the history of that epoch."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loader.conftest import NUM_ITEMS, RawFiles

from flatout.errors import ConfigError
from flatout.loader import FastDataLoader, create_dataloaders, create_task_dataloaders
from flatout.store import StoreReader

BATCH = 16
PER_EPOCH = -(-NUM_ITEMS // BATCH)


def noted(batch: dict[str, torch.Tensor], epoch: int) -> dict[str, torch.Tensor]:
    """Adds what the augmentation was told."""
    return {**batch, "epoch": torch.full_like(batch["key"], epoch), "doubled": 2 * batch["small"]}


def make_loader(store: StoreReader, **settings: Any) -> FastDataLoader:
    return FastDataLoader(store, BATCH, shuffle=True, seed=3, num_workers=1, **{"augment": noted, **settings})


def told(batches: list[dict[str, torch.Tensor]]) -> list[tuple[int, list[int]]]:
    """The epoch that each batch was augmented for, and its samples."""
    return [(int(batch["epoch"][0]), batch["key"].tolist()) for batch in batches]


def test_every_batch_comes_with_its_own_epoch(store: StoreReader) -> None:
    loader, plain = make_loader(store), make_loader(store, augment=None)
    for epoch in range(3):
        for found, bare in zip(loader, plain, strict=True):
            assert found["epoch"].tolist() == [epoch] * len(found["key"])
            assert torch.equal(found["doubled"], 2 * found["small"])
            assert list(found) == [*bare, "epoch", "doubled"]
            for name in bare:  # restored, and otherwise as without it
                assert torch.equal(found[name], bare[name]), name


@settings(max_examples=6)
@given(stop=st.integers(0, 3 * PER_EPOCH - 1), started=st.integers(0, 2))
def test_after_a_resume_the_epochs_are_those_of_an_unbroken_run(
    store: StoreReader, stop: int, started: int
) -> None:
    unbroken = make_loader(store)
    unbroken.set_epoch(started)
    expected = told([batch for _ in range(4) for batch in unbroken])
    first, done = make_loader(store), []
    first.set_epoch(started)
    while len(done) < stop:
        for batch in first:
            done.append(batch)
            if len(done) == stop:
                break
    second = make_loader(store)
    if stop:
        second.load_state_dict(first.state_dict())
    else:
        second.set_epoch(started)
    rest = [batch for _ in range(2) for batch in second]
    assert told(done) + told(rest) == expected[: len(done) + len(rest)]
    for loader in (unbroken, first, second):
        loader.close()


def test_after_a_break_the_next_epoch_is_told(store: StoreReader) -> None:
    loader = make_loader(store)
    next(iter(loader))
    assert int(next(iter(loader))["epoch"][0]) == 1
    loader.set_epoch(9)
    assert int(next(iter(loader))["epoch"][0]) == 9
    loader.close()


def test_a_pickled_loader_keeps_it(store: StoreReader) -> None:
    loader = pickle.loads(pickle.dumps(make_loader(store)))
    assert "doubled" in next(iter(loader))
    loader.close()


@pytest.mark.parametrize("create", [create_dataloaders, create_task_dataloaders])
def test_a_config_gives_it_to_the_training_split_alone(prepared: dict[str, Any], create: Any) -> None:
    config = {**prepared, "task": "segmentation"} if create is create_task_dataloaders else prepared
    loaders = create(config, augment=lambda batch, epoch: {**batch, "epoch": epoch})
    assert "epoch" in next(iter(loaders.train))
    assert "epoch" not in next(iter(loaders.val))
    assert "epoch" not in next(iter(loaders.test))


def test_raw_files_cannot_be_augmented_in_silence(raw: RawFiles) -> None:
    with pytest.raises(ConfigError, match="augment"):
        create_dataloaders(raw.config(), augment=noted)
