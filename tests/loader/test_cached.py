"""cached: the first epoch fills a store, later ones read it, and items come back as they were."""

from __future__ import annotations

import random
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.loader.caching import (
    NUM_ITEMS,
    Listed,
    Made,
    assert_all,
    assert_item,
    cached,
    decoded,
    expected,
)
from tests.loader.caching import items as items

from flatout.errors import CacheError
from flatout.loader.dataset import FastDataset
from flatout.store import StoreReader, verify
from flatout.store.fill import finish, known, pending
from flatout.store.metadata import SHARD_FOLDER, is_store


def test_the_first_epoch_fills_and_the_second_reads(items: Any, tmp_path: Path) -> None:
    dataset = cached(items(), tmp_path / "cache")
    assert_all(dataset)
    assert decoded(tmp_path) == list(range(NUM_ITEMS))
    assert_all(dataset)
    assert_all(cached(items(), tmp_path / "cache"))
    assert len(decoded(tmp_path)) == NUM_ITEMS


def test_a_full_cache_is_a_store(items: Any, tmp_path: Path) -> None:
    dataset = cached(items(), tmp_path / "cache")
    for at in reversed(range(NUM_ITEMS)):
        dataset[at]
    assert dataset.is_complete
    assert verify(tmp_path / "cache")
    store = StoreReader(tmp_path / "cache")
    assert store.keys() == [str(at) for at in range(NUM_ITEMS)]
    fast = FastDataset(tmp_path / "cache")
    for at in range(NUM_ITEMS):
        assert torch.equal(fast[at]["signal"], expected(at)["signal"])
        assert int(fast[at]["label"]) == at % 3


def test_batches_are_the_same_items(items: Any, tmp_path: Path) -> None:
    dataset = cached(items(), tmp_path / "cache")
    order = random.Random(1).sample(range(NUM_ITEMS), NUM_ITEMS)
    for _ in range(2):
        for start in range(0, NUM_ITEMS, 7):
            wanted = order[start : start + 7]
            for at, item in zip(wanted, dataset.__getitems__(wanted), strict=True):
                assert_item(item, at)
    assert len(decoded(tmp_path)) == NUM_ITEMS
    assert dataset.__getitems__([]) == []


def test_missing_items_of_a_batch_are_asked_for_at_once(tmp_path: Path) -> None:
    asked: list[list[int]] = []

    class Batched(Listed):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            asked.append(indices)
            return [self.items[at] for at in indices]

    dataset = cached(Batched([(at, str(at)) for at in range(6)]), tmp_path / "cache")
    assert dataset[2] == (2, "2")
    assert dataset.__getitems__([1, 2, 5]) == [(1, "1"), (2, "2"), (5, "5")]
    assert asked == [[1, 5]]


def test_indices_are_those_of_a_sequence(tmp_path: Path) -> None:
    dataset = cached(Listed([10, 11, 12]), tmp_path / "cache")
    assert dataset[-1] == 12
    assert dataset[np.int64(1)] == 11
    assert dataset[torch.tensor(0)] == 10
    assert list(dataset) == [10, 11, 12]
    for wrong in (3, -4):
        with pytest.raises(IndexError):
            dataset[wrong]
    with pytest.raises(TypeError):
        dataset["1"]  # type: ignore[index]


def test_a_part_of_an_epoch_is_kept(items: Any, tmp_path: Path) -> None:
    dataset = cached(items(), tmp_path / "cache")
    for at in (3, 17, 5):
        dataset[at]
    dataset.close()
    again = cached(items(), tmp_path / "cache")
    assert again.num_cached == 3
    assert_all(again)
    assert sorted(decoded(tmp_path)) == list(range(NUM_ITEMS))


def test_an_empty_dataset_is_one(tmp_path: Path) -> None:
    dataset = cached(Listed([]), tmp_path / "cache", check=True)
    assert len(dataset) == 0
    assert list(dataset) == []


def test_whoever_gets_an_item_may_change_it(tmp_path: Path) -> None:
    dataset = cached(Made(lambda at: (torch.ones(300), np.ones(2))), tmp_path / "cache")
    for _ in range(3):
        for at in range(12):
            tensor, array = dataset[at]
            assert tensor.sum() == 300
            tensor.zero_()
            array[:] = 5
        for tensor, _ in dataset.__getitems__(list(range(12))):
            assert tensor.sum() == 300
            tensor.zero_()


def test_the_transform_runs_after_at_each_access(items: Any, tmp_path: Path) -> None:
    calls: list[int] = []

    def augment(item: dict[str, Any]) -> torch.Tensor:
        calls.append(item["label"])
        noisy: torch.Tensor = item["signal"].add_(torch.rand(1))
        return noisy

    dataset = cached(items(), tmp_path / "cache", transform=augment, check=True)
    seen = [dataset[1], dataset[1], *dataset.__getitems__([1, 1])]
    assert len({float(signal[0]) for signal in seen}) == 4
    assert calls == [1] * 4
    assert_item(cached(items(), tmp_path / "cache")[1], 1)


def test_other_attributes_are_the_dataset_s_own(items: Any, tmp_path: Path) -> None:
    dataset = cached(items(), tmp_path / "cache")
    assert dataset.num_items == NUM_ITEMS
    assert not hasattr(dataset, "classes")


def test_an_item_that_raises_is_not_kept(tmp_path: Path) -> None:
    def make(at: int) -> int:
        if at == 4:
            raise ZeroDivisionError("item 4 is broken")
        return at

    dataset = cached(Made(make), tmp_path / "cache", check=True, num_checked=12)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="item 4 is broken"):
            dataset[4]
    assert [dataset[at] for at in range(12) if at != 4] == [at for at in range(12) if at != 4]
    dataset.close()
    assert dataset.num_cached == 11
    assert not is_store(tmp_path / "cache")


def test_what_cannot_be_stored_is_refused_with_its_place(tmp_path: Path) -> None:
    dataset = cached(Made(lambda at: (at, None if at == 5 else 1)), tmp_path / "cache")
    assert dataset[4] == (4, 1)
    with pytest.raises(CacheError, match=r"item 5 .*field 'target' is None"):
        dataset[5]


VALUES = st.one_of(
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.booleans(),
    st.lists(st.integers(-9, 9), max_size=3),
)
RECORDS = st.one_of(
    st.tuples(VALUES, VALUES), st.dictionaries(st.sampled_from("abc"), VALUES, min_size=1), VALUES
)


@given(st.lists(RECORDS, min_size=1, max_size=8))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_items_of_any_structures_come_back_from_disk(
    tmp_path_factory: pytest.TempPathFactory, records: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    first = cached(Listed(records), folder)
    for reading in (first, first, cached(Listed(["gone"] * len(records)), folder)):
        for item, wanted in zip(reading, records, strict=True):
            assert item == wanted
            assert type(item) is type(wanted)


def test_items_of_varying_shapes(tmp_path: Path) -> None:
    def make(at: int) -> dict[str, Any]:
        height = 5 if at < 6 else at
        return {"image": torch.full((3, height, 40), at, dtype=torch.uint8), "boxes": np.zeros((at, 4))}

    dataset = cached(Made(make), tmp_path / "cache", shard_bytes=1500)
    before = cached(Made(make), tmp_path / "cache")
    for at in range(12):
        dataset[at]
        before[0]
    assert verify(tmp_path / "cache")
    shapes = {name: spec.shape for name, spec in StoreReader(tmp_path / "cache").fields.items()}
    assert shapes == {"image": (3, None, 40), "boxes": (None, 4)}
    for reading in (dataset, before, cached(Made(make), tmp_path / "cache")):
        for at in range(12):
            assert torch.equal(reading[at]["image"], make(at)["image"])
            assert reading[at]["boxes"].shape == (at, 4)


def test_many_small_segments_are_joined(items: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "MAX_SMALL", 4)
    dataset = cached(items(), tmp_path / "cache", shard_bytes=1)
    other = cached(items(), tmp_path / "cache")
    for at in range(NUM_ITEMS):
        dataset[at]
        other[at]
    assert len(list((tmp_path / "cache" / SHARD_FOLDER).iterdir())) == 1
    assert verify(tmp_path / "cache")
    for reading in (dataset, other):
        assert_all(reading)
        assert_item(reading.__getitems__([7])[0], 7)
    assert len(decoded(tmp_path)) == NUM_ITEMS


def test_more_segments_than_may_be_open(items: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "MAX_OPEN", 3)
    dataset = cached(items(), tmp_path / "cache", shard_bytes=1)
    for _ in range(2):
        assert_all(dataset)
    assert len(dataset._filler.known._open) <= 3


def test_items_of_several_structures_stay_a_cache(tmp_path: Path) -> None:
    records = [1, "two", (3.0, np.zeros(4)), {"four": torch.zeros(2, 2)}]
    assert list(cached(Listed(records), tmp_path / "cache"))[:2] == [1, "two"]
    assert not is_store(tmp_path / "cache")
    again = cached(Listed([None] * 4), tmp_path / "cache")
    assert again.is_complete
    assert again[1] == "two"
    assert again.__getitems__([0, 1]) == [1, "two"]


def test_what_waits_long_is_written(items: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "MIN_WAIT_S", 0.0)
    monkeypatch.setattr(pending, "LOSS_SHARE", 0.0)
    dataset = cached(items(), tmp_path / "cache")
    dataset[0]
    dataset[0]
    assert cached(items(), tmp_path / "cache").num_cached == 1


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "cached.md"
    (example,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "example.py").write_text(example)
    runpy.run_path(str(tmp_path / "example.py"))
    assert verify(tmp_path / "cache")
