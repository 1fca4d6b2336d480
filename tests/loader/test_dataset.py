"""FastDataset: what a map-style dataset must do, in this process and in a DataLoader's workers."""

from __future__ import annotations

import operator
import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from flatout.errors import ConfigError, LoaderError
from flatout.loader.collate import Collate
from flatout.loader.dataset import FastDataset
from flatout.loader.fetch import ReadRule
from flatout.loader.loader import FastDataLoader
from flatout.loader.machine import Machine
from flatout.store import DataPreprocessor, StoreReader

NUM_ITEMS = 103


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def test_a_sample_is_the_stores(store: StoreReader) -> None:
    dataset = FastDataset(store)
    assert len(dataset) == NUM_ITEMS
    for at in (0, 17, NUM_ITEMS - 1):
        sample, wanted = dataset[at], store.read(at)
        assert sample.keys() == {*wanted, "key"}
        for name, array in wanted.items():
            assert tuple(sample[name].shape) == array.shape
            np.testing.assert_allclose(sample[name].numpy(), array, rtol=1e-6)
        assert sample["key"].dtype == torch.int64
        assert sample["key"].item() == store.numbers["key_hash"].view(np.int64)[at]


@given(st.lists(st.integers(-NUM_ITEMS, NUM_ITEMS - 1), max_size=20))
@settings(deadline=None, max_examples=30)
def test_many_at_once_are_what_one_by_one_are(store: StoreReader, indices: list[int]) -> None:
    dataset = FastDataset(store)
    for at, sample in zip(indices, dataset.__getitems__(indices), strict=True):
        assert_same(sample, dataset[at % NUM_ITEMS])


def test_numbers_of_other_types_count(store: StoreReader) -> None:
    dataset = FastDataset(store)
    assert_same(dataset[np.int64(3)], dataset[torch.tensor(3)])
    with pytest.raises(TypeError):
        dataset[1.0]  # type: ignore[index]


@pytest.mark.parametrize("index", [NUM_ITEMS, -NUM_ITEMS - 1, 10**9])
def test_a_sample_that_is_not_there_is_an_index_error(store: StoreReader, index: int) -> None:
    dataset = FastDataset(store)
    with pytest.raises(IndexError, match=f"{index} of a dataset with {NUM_ITEMS}"):
        dataset[index]
    with pytest.raises(IndexError):
        dataset.__getitems__([0, index])


def test_iteration_ends(store: StoreReader) -> None:
    assert len([sample["label"] for sample in FastDataset(store)]) == NUM_ITEMS  # type: ignore[attr-defined]


def test_splits_and_fields(store: StoreReader) -> None:
    splits = [FastDataset(store.folder, split, fields=["label"]) for split in store.meta.splits]
    keys = [sample["key"].item() for dataset in splits for sample in dataset.__getitems__(range(len(dataset)))]
    assert sorted(keys) == sorted(store.numbers["key_hash"].view(np.int64).tolist())
    assert splits[0][0].keys() == {"label", "key"}
    with pytest.raises(ConfigError, match=r"no field 'labels'.*label"):
        FastDataset(store, fields=["labels"])
    with pytest.raises(ConfigError, match=r"split 'dev'.*train"):
        FastDataset(store, "dev")


def test_a_field_called_key_is_refused(tmp_path: Path) -> None:
    DataPreprocessor.from_dataset([{"key": np.zeros(3)}], tmp_path / "s", num_workers=0).run()
    with pytest.raises(ConfigError, match="'key' clashes"):
        FastDataset(tmp_path / "s")


def test_a_transform_runs_on_each_sample_unless_the_device_augments(store: StoreReader) -> None:
    transform = operator.itemgetter("label", "key")
    dataset = FastDataset(store, transform=transform)
    assert dataset[3] == transform(FastDataset(store)[3])
    assert len(dataset.__getitems__([1, 2])) == 2
    plain = FastDataset(store, transform=transform, use_gpu_augment=True, view_cache_refresh_epochs=3)
    assert isinstance(plain[3], dict)
    assert plain.view_cache_refresh_epochs == 3


def test_caching_changes_nothing_but_time(store: StoreReader) -> None:
    cached, plain = FastDataset(store, "train", cache_in_memory=True), FastDataset(store, "train")
    for at in range(0, len(plain), 9):
        assert_same(cached[at], plain[at])
    assert_same(pickle.loads(pickle.dumps(cached))[2], plain[2])


def test_a_cache_that_does_not_fit_is_refused(store: StoreReader) -> None:
    with pytest.raises(LoaderError, match=r"cache_in_memory of split 'train'.*free memory"):
        FastDataset(store, "train", cache_in_memory=True, machine=Machine("linux", 2, 100, 100))


def test_sample_bytes(store: StoreReader) -> None:
    assert FastDataset(store, fields=["image"]).sample_bytes == 2 * 40 * 16 * 4


def test_it_travels_as_a_path(store: StoreReader) -> None:
    dataset = FastDataset(store, "train", fields=["image", "packed"])
    dataset[0]
    packed = pickle.dumps(dataset)
    assert len(packed) < 2000
    assert_same(pickle.loads(packed)[5], dataset[5])


def test_a_store_that_changed_on_the_way_is_refused(tmp_path: Path) -> None:
    items = [{"x": np.full((3,), number)} for number in range(6)]
    DataPreprocessor.from_dataset(items[:4], tmp_path / "s", num_workers=0).run()
    packed = pickle.dumps(FastDataset(tmp_path / "s"))
    DataPreprocessor.from_dataset(items, tmp_path / "s", num_workers=0).run()
    with pytest.raises(LoaderError, match="prepared again"):
        pickle.loads(packed)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_give_the_same_samples(store: StoreReader, start: str) -> None:
    dataset = FastDataset(store, "train")
    collate = Collate(store.fields)
    here = [
        collate(dataset.__getitems__(range(at, min(at + 16, len(dataset)))))
        for at in range(0, len(dataset), 16)
    ]
    loader: Any = DataLoader(
        dataset, batch_size=16, num_workers=2, multiprocessing_context=start, collate_fn=collate
    )
    for batch, wanted in zip(loader, here, strict=True):
        assert_same(batch, wanted)


def test_a_fork_amid_open_maps_and_kept_copies(store: StoreReader) -> None:
    dataset = FastDataset(store, cache_in_memory=True, fields=["image", "packed"])
    wanted = dataset[50]
    loader: Any = DataLoader(dataset, batch_size=None, sampler=[50, 50], num_workers=2)
    for sample in loader:
        assert_same(sample, wanted)


def test_a_transform_in_workers(store: StoreReader) -> None:
    dataset = FastDataset(store, "train", transform=partial(map_label, add=10))
    loader: Any = DataLoader(dataset, batch_size=8, num_workers=1)
    assert torch.cat(list(loader)).min() >= 10


def map_label(sample: dict[str, torch.Tensor], add: int) -> torch.Tensor:
    return sample["label"] + add


def test_a_loader_reads_what_the_dataset_reads(store: StoreReader) -> None:
    dataset = FastDataset(store, fields=["label", "coded"], crc="off", io="pread")
    loader = FastDataLoader(dataset, 16, num_workers=0)
    batch = next(iter(loader))
    assert set(batch) == {"label", "coded", "key"}
    for at, sample in enumerate(dataset[at] for at in range(16)):
        assert all(torch.equal(batch[name][at], value) for name, value in sample.items())
    assert (loader._read.crc, loader._read.io) == ("off", "pread")


def test_a_loader_refuses_a_transform_that_it_would_not_run(store: StoreReader) -> None:
    with pytest.raises(ConfigError, match=r"would not run the dataset.s transform.*torch DataLoader"):
        FastDataLoader(FastDataset(store, transform=dict))
    augmented = FastDataset(store, transform=dict, use_gpu_augment=True)
    assert len(FastDataLoader(augmented, 1)) == len(store)


def test_a_loader_has_its_dataset(prepared: dict[str, Any]) -> None:
    """As every DataLoader has: libraries ask for `len(loader.dataset)`."""
    folder = prepared["preprocessed_data_dir"]
    rule = ReadRule(fields=("image", "label"), crc="always", io="pread")
    loader = FastDataLoader(folder, 4, split="val", read=rule)
    dataset = loader.dataset
    assert loader.dataset is dataset
    assert dataset.read_rule == rule
    assert dataset.store is loader.store
    keys = [key for batch in loader for key in batch["key"].tolist()]
    assert [int(sample["key"]) for sample in dataset] == keys
    assert set(dataset[0]) == {"image", "label", "key"}
    copy = pickle.loads(pickle.dumps(loader))
    assert len(copy.dataset) == len(dataset)
    with pytest.raises(AttributeError):
        loader.dataset = dataset  # type: ignore[misc]


def test_a_dataset_that_was_given_is_the_loaders_own(prepared: dict[str, Any]) -> None:
    given = FastDataset(prepared["preprocessed_data_dir"], "train")
    assert FastDataLoader(given, 4).dataset is given
    assert FastDataLoader(given, 4, split="train").dataset is given
    other = FastDataLoader(given, 4, split="val").dataset
    assert other.split == "val"
    assert len(other) != len(given)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_of_different_lengths_in_an_ordinary_dataloader(store: StoreReader, num_workers: int) -> None:
    dataset = FastDataset(store)
    loader: Any = DataLoader(dataset, 16, num_workers=num_workers, collate_fn=dataset.collate)
    for batch, wanted in zip(loader, FastDataLoader(store, 16, num_workers=0), strict=True):
        assert batch.keys() == wanted.keys()
        assert all(torch.equal(batch[name], wanted[name]) for name in batch)


def test_a_loader_refuses_fields_that_are_not_there(store: StoreReader) -> None:
    with pytest.raises(ConfigError, match=r"no field 'nope'; it has: image"):
        FastDataLoader(store, read=ReadRule(fields=("image", "nope")))


def test_a_rule_of_the_loaders_own_keeps_to_the_dataset(store: StoreReader) -> None:
    """Neither its fields nor its transform are dropped for a rule that names neither."""
    dataset = FastDataset(store, fields=["label", "coded"])
    rule = ReadRule(crc="off")
    assert set(next(iter(FastDataLoader(dataset, 8, read=rule, num_workers=0)))) == {"label", "coded", "key"}
    named = replace(rule, fields=("label",))
    assert set(next(iter(FastDataLoader(dataset, 8, read=named, num_workers=0)))) == {"label", "key"}
    with pytest.raises(ConfigError, match="would not run the dataset"):
        FastDataLoader(FastDataset(store, transform=dict), 8, read=rule)
