"""`preprocessed_data.h5`: what other tools see of a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.store import DataPreprocessor, StoreReader, view
from flatout.store.view import VIEW, _fixed_texts, _runs

pytestmark = pytest.mark.usefixtures("few_shards")


class Items:
    """A dataset of given items."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def store_of(folder: Path, items: list[Any], **settings: Any) -> StoreReader:
    settings = {"num_workers": 0, "transform_version": "1", **settings}
    DataPreprocessor.from_dataset(Items(items), folder, **settings).run()
    return StoreReader(folder)


def test_h5py_alone_reads_every_value_from_anywhere(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = StoreReader(stored)
    samples = [store.read(position) for position in range(len(store))]
    with h5py.File(stored / VIEW, "r") as file:
        np.testing.assert_array_equal(file["image"][:], [sample["image"] for sample in samples])
        np.testing.assert_array_equal(file["label"][:], [sample["label"] for sample in samples])
        assert file["key"].asstr()[:].tolist() == store.keys()
        splits = [store.meta.splits[number] for number in store.numbers["split"]]
        assert file["split"].asstr()[:].tolist() == splits
        for name in ("series", "text"):
            values, offsets = file[f"{name}/values"][:], file[f"{name}/offsets"][:]
            assert offsets[0] == 0
            assert offsets[-1] == len(values)
            for position, sample in enumerate(samples):
                found = values[offsets[position] : offsets[position + 1]]
                np.testing.assert_array_equal(found, sample[name].reshape(-1))
        assert file["flatout/classes/label"].asstr()[:].tolist() == ["cat", "dog", "eel"]
        assert dict(file["image"].attrs)["encoding"] == "none"
        assert file["series"].attrs["shape"].tolist() == [-1, 2]
        assert file["text"].attrs["kind"] == "text"


def test_rows_that_no_longer_count_are_not_seen(prepared: Any) -> None:
    del prepared.rows[5], prepared.rows[0]
    prepared.put(3, seed=99)
    prepared.save()
    prepared.prepare()
    store = StoreReader(prepared.store)
    with h5py.File(prepared.store / VIEW, "r") as file:
        assert file["key"].asstr()[:].tolist() == [row["id"] for row in prepared.rows] == store.keys()
        found = file["image"][:]
    np.testing.assert_array_equal(found, [store.read(position)["image"] for position in range(len(store))])


def test_a_missing_shard_shows_as_nan(prepared: Any) -> None:
    store = StoreReader(prepared.store)
    (prepared.store / "shards" / store.meta.shards[1].file).unlink()
    with h5py.File(prepared.store / VIEW, "r") as file:
        lost = store.numbers["shard"] == 1
        assert np.isnan(file["image"][:][lost]).all()
        assert np.isfinite(file["image"][:][~lost]).all()
        assert np.isnan(file["series/values"][:]).any()


@pytest.mark.parametrize("limit", ["MAX_VIRTUAL_SHARDS", "MAX_RUNS"])
def test_many_shards_or_runs_become_links_that_raise(
    source: Any, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(view, limit, 2)
    source.prepare()
    store = StoreReader(source.store)
    with h5py.File(source.store / VIEW, "r") as file:
        assert "image" not in file
        assert list(file["shards"]) == ["000000", "000001", "000002"]
        for number in range(3):
            np.testing.assert_array_equal(
                file[f"shards/{number:06d}/image"][:], store.shard(number).data("image")
            )
        assert file["key"].asstr()[:].tolist() == store.keys()
    (source.store / "shards" / store.meta.shards[1].file).unlink()
    with h5py.File(source.store / VIEW, "r") as file, pytest.raises((OSError, KeyError), match="open"):
        _ = file["shards/000001/image"]


def test_just_under_the_limits_all_is_virtual(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "MAX_VIRTUAL_SHARDS", 3)
    monkeypatch.setattr(view, "MAX_RUNS", 3)
    source.prepare()
    with h5py.File(source.store / VIEW, "r") as file:
        assert file["image"].is_virtual
        assert file["series/values"].is_virtual


def test_encoded_fields_come_with_what_restores_them(tmp_path: Path) -> None:
    items = [{"x": np.linspace(n, n + 1, 4, dtype=np.float32), "y": np.ones(n, np.float32)} for n in range(6)]
    fields = {name: {"kind": "transform", "encoding": "uint8"} for name in ("x", "y")}
    store = store_of(tmp_path / "store", items, fields=fields)
    with h5py.File(store.folder / VIEW, "r") as file:
        scale = file["x_scale"][:]
        restored = file["x"][:] * scale[:, :1] + scale[:, 1:]
        np.testing.assert_allclose(restored, [item["x"] for item in items], atol=0.01)
        assert file["y/scale"].shape == (6, 2)
        assert file["x"].attrs["dtype"] == "float32"


def test_compressed_fields(tmp_path: Path) -> None:
    items = [{"x": np.full(3, n, np.float32), "y": np.full((n, 2), n, np.float32)} for n in range(6)]
    fields = {name: {"kind": "transform", "compression": "zstd"} for name in ("x", "y")}
    store = store_of(tmp_path / "store", items, fields=fields)
    import hdf5plugin  # noqa: F401  so that h5py reads zstd

    with h5py.File(store.folder / VIEW, "r") as file:
        np.testing.assert_array_equal(file["x"][:], [item["x"] for item in items])
        assert file["y/shapes"][:].tolist() == [[n, 2] for n in range(6)]
        padded = np.concatenate([file[f"y/shards/{number:06d}"][:].reshape(-1) for number in range(3)])
        assert padded.sum() == sum(item["y"].sum() for item in items)


def test_fields_named_as_the_views_own_datasets(tmp_path: Path) -> None:
    items = [{"key": float(n), "split": np.ones(2, np.float32) * n, "split_scale": n} for n in range(4)]
    fields = {"split": {"kind": "transform", "encoding": "uint8"}}
    store = store_of(tmp_path / "store", items, fields=fields)
    with h5py.File(store.folder / VIEW, "r") as file:
        assert file["key"][:].tolist() == [0, 1, 2, 3]
        assert file["split_scale"][:].tolist() == [0, 1, 2, 3]
        assert file["flatout/key"].asstr()[:].tolist() == store.keys()
        assert file["flatout/split_scale"].shape == (4, 2)


def test_empty_complex_and_boolean_fields(tmp_path: Path) -> None:
    items = [
        {"none": np.zeros((0, 3), np.float32), "z": np.array([n * 1j], np.complex64), "b": n > 1}
        for n in range(4)
    ]
    store = store_of(tmp_path / "store", items)
    with h5py.File(store.folder / VIEW, "r") as file:
        assert file["none"].shape == (4, 0, 3)
        assert file["z"][:, 0].tolist() == [0j, 1j, 2j, 3j]
        assert file["b"][:].tolist() == [False, False, True, True]
    (store.folder / "shards" / store.meta.shards[0].file).unlink()
    with h5py.File(store.folder / VIEW, "r") as file:
        assert np.isnan(file["z"][0, 0])


def test_thousands_of_classes(tmp_path: Path) -> None:
    classes = [f"class {number}" for number in range(5000)]
    fields = {"y": {"kind": "label", "classes": classes}}
    store = store_of(tmp_path / "store", [{"y": 0}, {"y": 4999}], fields=fields)
    with h5py.File(store.folder / VIEW, "r") as file:
        assert file["flatout/classes/y"].asstr()[:].tolist() == classes


def test_the_view_is_swapped_whole(prepared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (prepared.store / VIEW).read_bytes()
    store = StoreReader(prepared.store)
    index = pa.table(
        {"shard": [0], "row": [0], "key": ["a"], "split": [0], "length_series": [1], "length_text": [1]}
    )
    monkeypatch.setattr(os, "write", lambda descriptor, data: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        view.write_view(prepared.store, store.meta.fields, store.meta.shards, index, ["train"])
    assert (prepared.store / VIEW).read_bytes() == before


def test_runs_of_neighbouring_rows() -> None:
    shards, rows = np.array([0, 0, 0, 1, 1, 0, 0]), np.array([0, 1, 3, 4, 5, 6, 5])
    found = [(run.at, run.shard, run.row, run.count) for run in _runs(shards, rows)]
    assert found == [(0, 0, 0, 2), (2, 0, 3, 1), (3, 1, 4, 2), (5, 0, 6, 1), (6, 0, 5, 1)]
    assert list(_runs(shards[:0], rows[:0])) == []


@given(
    texts=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9), max_size=12),
    longest=st.sampled_from(["", "x" * 30, "y" * 500]),
    cuts=st.tuples(st.integers(0, 12), st.integers(0, 12)),
)
def test_keys_are_laid_out_as_numpy_would(texts: list[str], longest: str, cuts: tuple[int, int]) -> None:
    """Of equal width unless that wastes more than strings of any length do; from any part of a column."""
    texts = [*texts, longest]
    first, second = sorted(cuts)
    column = pa.chunked_array([texts[:first], texts[first:second], texts[second:]], pa.string())
    for some, wanted in ((column, texts), (column.slice(1), texts[1:])):
        found, encoded = _fixed_texts(some), [text.encode() for text in wanted]
        if found.dtype == object:
            assert found.tolist() == wanted
        else:
            assert found.tolist() == np.array(encoded).tolist() == encoded
    assert (_fixed_texts(pa.chunked_array([["a", "b" * 500]])).dtype == object) is True
    assert _fixed_texts(pa.chunked_array([["a", "bb"]])).dtype == "S2"
