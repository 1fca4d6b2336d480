"""The bank as a map-style dataset: refreshed by the one who iterates, followed by all workers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.bank.conftest import NUM_ITEMS
from tests.bank.transforms import scaled
from torch.utils.data import DataLoader

from flatout.bank import ViewDataset
from flatout.bank.recipe import ViewRecipe
from flatout.errors import LoaderError
from flatout.loader import FastDataset
from flatout.store import StoreReader


def make_dataset(store: StoreReader, **settings: Any) -> ViewDataset:
    given: dict[str, Any] = {"transform": scaled, "seed": 5, "num_workers": 0, "background": False}
    return ViewDataset(store, **{**given, "view_cache_refresh_epochs": 2, **settings})


def expected(store: StoreReader, epoch: int) -> dict[str, torch.Tensor]:
    samples = FastDataset(store).__getitems__(range(NUM_ITEMS))
    signals, keys = (torch.stack([sample[name] for sample in samples]) for name in ("signal", "key"))
    return ViewRecipe(scaled, seed=5).make(signals, keys, epoch)


def test_samples_have_views_and_the_other_fields(store: StoreReader) -> None:
    dataset = make_dataset(store)
    with pytest.raises(LoaderError, match="refresh_view_cache"):
        dataset[0]
    dataset.refresh_view_cache(3)
    assert len(dataset) == NUM_ITEMS
    sample, own = dataset[-1], expected(store, 2)
    assert set(sample) == {"view1", "view2", "subs1", "subs2", "age", "label", "key"}
    for name in ("view1", "view2", "subs1", "subs2"):
        assert torch.equal(sample[name], own[name][-1])
    assert sample["label"] == (NUM_ITEMS - 1) % 3
    assert dataset.diversity is not None
    assert dataset.diversity.num_refreshes == 1
    dataset.close()


def test_force_draws_out_of_turn(store: StoreReader) -> None:
    dataset = make_dataset(store)
    dataset.refresh_view_cache(0)
    before = dataset[4]["view1"]
    dataset.refresh_view_cache(1)
    assert torch.equal(dataset[4]["view1"], before)
    dataset.refresh_view_cache(1, force=True)
    assert torch.equal(dataset[4]["view1"], expected(store, 1)["view1"][4])
    dataset.close()


def test_persistent_workers_follow_a_refresh(store: StoreReader) -> None:
    dataset = make_dataset(store)
    loader = DataLoader(
        dataset, batch_size=16, num_workers=1, persistent_workers=True, multiprocessing_context="spawn"
    )
    for epoch in (0, 1, 2):
        dataset.refresh_view_cache(epoch)
        views = torch.cat([batch["view2"] for batch in loader])
        assert torch.equal(views, expected(store, epoch - epoch % 2)["view2"])
    del loader
    dataset.close()


def test_a_workers_copy_does_not_refresh(store: StoreReader) -> None:
    dataset = make_dataset(store)
    copy = ViewDataset.__new__(ViewDataset)
    copy.__dict__.update(dataset.__getstate__())
    with pytest.raises(LoaderError, match="not in a worker"):
        copy.refresh_view_cache(0)
    assert copy.diversity is None
    dataset.close()


def test_for_the_device_the_sample_itself_is_every_view(store: StoreReader) -> None:
    dataset = make_dataset(store, use_gpu_augment=True, num_views=3)
    dataset.refresh_view_cache(0)
    sample, own = dataset[5], FastDataset(store)[5]
    assert set(sample) == {"view1", "view2", "view3", "age", "label", "key"}
    assert torch.equal(sample["view3"], own["signal"])
    assert dataset.bank is None


def test_ranks_that_share_a_folder_may_be_at_different_epochs(store: StoreReader, tmp_path: Any) -> None:
    one, other = (make_dataset(store, folder=tmp_path) for _ in range(2))
    one.refresh_view_cache(1)
    other.refresh_view_cache(2)
    assert torch.equal(one[3]["view1"], expected(store, 0)["view1"][3])
    assert torch.equal(other[3]["view1"], expected(store, 2)["view1"][3])
    one.close()
    other.close()
