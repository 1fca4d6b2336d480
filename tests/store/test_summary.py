"""Summaries against plain counting."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.store import DataPreprocessor, StoreReader, extent, summarise_store

pytestmark = pytest.mark.usefixtures("few_shards")


def field(found: Any, name: str) -> Any:
    return next(item for item in found.fields if item.name == name)


def test_a_store_in_numbers(stored: Path) -> None:
    found = summarise_store(stored)
    store = StoreReader(stored)
    samples = [store.read(position) for position in range(12)]
    splits = [store.meta.splits[number] for number in store.numbers["split"]]
    assert (found.num_samples, found.num_shards, found.num_bad, found.num_groups) == (12, 3, 0, 12)
    assert found.splits == dict(Counter(splits))
    assert found.disk_bytes == sum(path.stat().st_size for path in (stored / "shards").iterdir())
    assert found.memory_bytes == sum(array.nbytes for sample in samples for array in sample.values())

    image = field(found, "image")
    values = np.stack([sample["image"] for sample in samples])
    assert (image.dtype, image.shape, image.num_bytes) == ("float32", [4, 5], values.nbytes)
    assert (image.low, image.high) == (float(values.min()), float(values.max()))
    assert image.mean == pytest.approx(float(values.mean(dtype=np.float64)))
    assert image.num_measured == 12
    assert image.lengths is None

    series = field(found, "series")
    lengths = [len(sample["series"]) for sample in samples]
    assert series.shape == [None, 2]
    assert series.lengths == {
        "shortest": min(lengths),
        "median": int(np.median(lengths)),
        "longest": max(lengths),
    }
    assert series.shapes == [(min(lengths), max(lengths)), (2, 2)]
    assert (series.num_bytes, series.disk_bytes) == (8 * sum(lengths), 8 * sum(lengths))

    names = [("cat", "dog", "eel")[int(sample["label"])] for sample in samples]
    expected: dict[str, dict[str, int]] = {}
    for name, split in zip(names, splits, strict=True):
        expected.setdefault(name, Counter())[split] += 1
    assert field(found, "label").classes == expected

    text = field(found, "text")
    assert (text.kind, text.low, text.num_measured) == ("text", None, 0)
    json.dumps(found.to_json(), allow_nan=False)


class Items:
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def summary_of(folder: Path, items: list[Any], fields: dict[str, Any]) -> Any:
    settings: dict[str, Any] = {"num_workers": 0, "transform_version": "1", "fields": fields}
    DataPreprocessor.from_dataset(Items(items), folder, **settings).run()
    return summarise_store(folder)


def test_only_finite_values_are_measured(tmp_path: Path) -> None:
    items = [{"x": np.array([1.0, np.nan, np.inf, 3.0], np.float32)}, {"x": np.full(4, np.nan, np.float32)}]
    found = summary_of(tmp_path / "store", items, {"x": {"kind": "transform", "allow_nonfinite": True}})
    x = field(found, "x")
    assert (x.low, x.high, x.mean) == (1.0, 3.0, 2.0)
    assert (x.num_nan, x.num_infinite, x.num_measured) == (5, 1, 2)
    json.dumps(found.to_json(), allow_nan=False)


def test_complex_boolean_and_empty_fields(tmp_path: Path) -> None:
    items = [{"z": np.array([1j], np.complex64), "b": n > 0, "e": np.zeros((0, 2))} for n in range(4)]
    found = summary_of(tmp_path / "store", items, {})
    assert field(found, "z").low is None
    assert (field(found, "b").low, field(found, "b").mean) == (0.0, 0.75)
    assert (field(found, "e").num_bytes, field(found, "e").low) == (0, None)


def test_encoded_fields_are_measured_restored_and_counted_as_stored(tmp_path: Path) -> None:
    items = [{"x": np.linspace(-1, 1, 8, dtype=np.float32)}] * 3
    fields = {"x": {"kind": "transform", "encoding": "uint8", "compression": "zstd"}}
    found = summary_of(tmp_path / "store", items, fields)
    x = field(found, "x")
    assert (x.low, x.high) == pytest.approx((-1, 1), abs=0.01)
    assert (x.num_bytes, found.memory_bytes) == (24, 96)


def test_compressed_fields_tell_what_they_take_on_disk(tmp_path: Path) -> None:
    items = [{"x": np.zeros((n + 1, 100, 2), np.float32)} for n in range(4)]
    fields = {"x": {"kind": "transform", "compression": "zstd", "ragged": True}}
    found = summary_of(tmp_path / "store", items, fields)
    x = field(found, "x")
    store = StoreReader(tmp_path / "store")
    tables = [store.shard(number).tables["flatout/chunks/x"] for number in range(len(store.meta.shards))]
    assert x.disk_bytes == sum(int(table[:, 1].sum()) for table in tables)
    assert 0 < x.disk_bytes < x.num_bytes / 4


def test_lengths_are_steps_and_shapes_are_ranges(tmp_path: Path) -> None:
    items = [{"one": np.zeros((n + 3, 7)), "two": np.zeros((n + 1, 9 - n, 2))} for n in range(5)]
    fields = {name: {"kind": "transform", "ragged": True} for name in ("one", "two")}
    found = summary_of(tmp_path / "store", items, fields)
    one, two = field(found, "one"), field(found, "two")
    assert one.lengths == {"shortest": 3, "median": 5, "longest": 7}
    assert (two.lengths, two.shapes) == (None, [(1, 5), (5, 9), (2, 2)])


def test_numbers_without_names_are_classes_too(tmp_path: Path) -> None:
    found = summary_of(tmp_path / "store", [{"y": n % 2 + 5} for n in range(4)], {"y": {"kind": "label"}})
    assert {name: sum(counts.values()) for name, counts in field(found, "y").classes.items()} == {
        "5": 2,
        "6": 2,
    }


def test_a_large_field_is_measured_in_part_and_says_so(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extent, "RANGE_BYTES", 4 * 80)
    assert field(summarise_store(stored), "image").num_measured == 4


def test_samples_that_are_restored_one_by_one_are_few_and_said(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extent, "RANGE_SAMPLES", 5)
    found = summarise_store(stored)
    assert field(found, "series").num_measured == 5
    assert field(found, "image").num_measured == 12  # plain ones are measured together, however many


def test_plain_samples_are_measured_the_same_in_any_blocks(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = field(summarise_store(stored), "image")
    for values in (1, 21, 40, 1 << 20):
        monkeypatch.setattr(extent, "BLOCK_VALUES", values)
        found = field(summarise_store(stored), "image")
        assert (found.low, found.high, found.num_measured) == (whole.low, whole.high, whole.num_measured)
        assert found.mean == pytest.approx(whole.mean)


def test_bad_rows_are_counted(source: Any) -> None:
    (source.folder / "s03.npy").write_bytes(b"broken")
    source.prepare(max_bad_fraction=0.5)
    assert summarise_store(source.store).num_bad == 1
