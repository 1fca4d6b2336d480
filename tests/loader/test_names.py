"""From the key hashes of a batch back to keys, over a store and over raw files."""

from __future__ import annotations

from typing import Any

from flatout.loader import FastDataLoader, StandardDataset
from flatout.loader.names import sample_names
from flatout.store import StoreReader


def test_the_keys_of_a_batch(store: StoreReader) -> None:
    batch = next(iter(FastDataLoader(store, 7, shuffle=True, num_workers=0)))
    names = sample_names(store, batch["key"].tolist())
    labels = [int(store.read(store.keys().index(name))["label"]) for name in names]
    assert labels == batch["label"].tolist()


def test_the_keys_of_raw_samples(prepared: dict[str, Any]) -> None:
    dataset = StandardDataset(prepared, "train")
    hashes = [int(dataset[at]["key"]) for at in (0, 3, 1)]
    assert sample_names([dataset], hashes) == [dataset.keys()[at] for at in (0, 3, 1)]


def test_a_sample_that_is_not_there(store: StoreReader, prepared: dict[str, Any]) -> None:
    for samples in (store, [StandardDataset(prepared, "train")]):
        assert sample_names(samples, [-1]) == ["ffffffffffffffff"]
