"""A finished set of views: found by key, in any order, refused where a key is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.bank.test_order import order

from flatout.bank.generation import Generation
from flatout.bank.place import remove_generation
from flatout.errors import LoaderError
from flatout.store import StoreReader


@pytest.fixture
def made(store: StoreReader, tmp_path: Path) -> Path:
    order(store, "train").make(tmp_path / "views", num_workers=0)
    return tmp_path / "views"


def test_views_come_in_the_order_of_the_keys(store: StoreReader, made: Path) -> None:
    dataset = order(store, "train").dataset
    generation = Generation(made, 0)
    assert len(generation) == len(dataset)
    picked = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()
    keys = torch.stack([dataset[at]["key"] for at in picked])
    found = generation.fetch(keys)
    own = order(store, "train").recipe.make(torch.stack([dataset[at]["signal"] for at in picked]), keys, 0)
    assert list(found) == list(own)
    for name in own:
        assert torch.equal(found[name], own[name])
    assert torch.equal(generation.fetch(keys[3:4])["view1"], own["view1"][3:4])


def test_samples_of_another_split_have_none(store: StoreReader, made: Path) -> None:
    keys = order(store, "val").dataset[0]["key"][None]
    with pytest.raises(LoaderError, match="1 of 1 samples have no views"):
        Generation(made, 0).fetch(keys)


def test_it_outlives_its_files(store: StoreReader, made: Path) -> None:
    generation = Generation(made, 0)
    remove_generation(made)
    assert not made.exists()
    keys = order(store, "train").dataset[0]["key"][None]
    assert generation.fetch(keys)["view1"].shape == (1, 1, 48)
