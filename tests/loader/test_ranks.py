"""Rank and world size: both given, or both from torch.distributed, and looked up late."""

from __future__ import annotations

import pytest
from tests.loader.epochs import epoch_keys, keys_of, loader_of
from torch import distributed

from flatout.errors import ConfigError
from flatout.loader.ranks import rank_and_world
from flatout.store import StoreReader


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)


def test_alone() -> None:
    assert rank_and_world() == (0, 1)


def test_what_is_given_counts(two_ranks: None) -> None:
    assert rank_and_world() == (1, 2)
    assert rank_and_world(3, 4) == (3, 4)


@pytest.mark.parametrize(("rank", "world"), [(1, None), (None, 4), (0, None)])
def test_one_without_the_other_is_refused(rank: int | None, world: int | None) -> None:
    with pytest.raises(ConfigError, match="rank and world_size"):
        rank_and_world(rank, world)


def test_ranks_are_read_at_the_first_batch(store: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader may be made before the process group is."""
    loader = loader_of(store, 5)
    stream = iter(loader)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    assert keys_of([next(stream)]) == epoch_keys(store, 0)[5:10]
    assert len(loader) == 11
