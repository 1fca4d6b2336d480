"""Single samples out of a store: as batches have them, whatever their field's form or name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from flatout.errors import StoreCorruptError
from flatout.loader.fetch import ReadRule
from flatout.loader.loader import FastDataLoader
from flatout.loader.samples import SampleReader, mean_bytes
from flatout.store import DataPreprocessor, StoreReader


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_samples_are_those_of_batches(store: StoreReader, io: str) -> None:
    everything = np.arange(len(store))
    samples = SampleReader(store, everything, list(store.fields), ReadRule(io=io)).read(everything)
    (batch,) = FastDataLoader(store, len(store), num_workers=0)
    for at, sample in enumerate(samples):
        length = int(batch["series_length"][at])
        assert torch.equal(sample["series"], batch["series"][at, :length])
        for name in ("image", "small", "coded", "half", "packed", "label", "key"):
            assert torch.equal(sample[name], batch[name][at])
            assert sample[name].dtype == batch[name].dtype


def test_samples_are_the_callers_own(store: StoreReader) -> None:
    reader = SampleReader(store, np.arange(5), list(store.fields))
    reader.keep()
    for sample in reader.read(np.arange(5)):
        for value in sample.values():
            value.zero_()
    assert all(sample["image"].any() and sample["key"] for sample in reader.read(np.arange(5)))
    assert reader.read(np.arange(5))[1]["packed"].any()


def test_a_name_that_looks_like_a_companion_is_kept(tmp_path: Path) -> None:
    fields = {"x_scale": {"kind": "transform", "encoding": "uint8"}}
    items = [
        {"x_scale": np.linspace(0, 1, 9, dtype=np.float32), "y_scale": np.int64(number)} for number in (1, 2)
    ]
    DataPreprocessor.from_dataset(items, tmp_path / "s", num_workers=0, fields=fields).run()
    store = StoreReader(tmp_path / "s")
    first, second = SampleReader(store, np.arange(2), list(store.fields)).read(np.arange(2))
    np.testing.assert_allclose(first["x_scale"], np.linspace(0, 1, 9), atol=0.003)
    assert second["y_scale"] == 2


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("is_kept", [False, True])
def test_damage_is_found_on_the_first_touch(tmp_path: Path, compression: str, is_kept: bool) -> None:
    fields = {"x": {"kind": "transform", "compression": compression}}
    items = [{"x": np.random.default_rng(number).random((4000,))} for number in range(4)]
    DataPreprocessor.from_dataset(items, tmp_path / "s", num_workers=0, fields=fields).run()
    store = StoreReader(tmp_path / "s")
    shard = store.shard(0)
    data = bytearray(shard.path.read_bytes())
    data[-2000] ^= 1
    shard.path.write_bytes(data)
    reader = SampleReader(store, np.arange(4), ["x"])
    with pytest.raises(StoreCorruptError, match="--repair"):
        touch(reader, is_kept)
    if compression == "none":
        assert SampleReader(store, np.arange(4), ["x"], ReadRule(crc="off")).read(np.arange(4))


def touch(reader: SampleReader, is_kept: bool) -> None:
    if is_kept:
        reader.keep()
    reader.read(np.arange(4))


def test_mean_bytes_come_from_the_index_alone(store: StoreReader) -> None:
    first = np.arange(7)
    assert mean_bytes(store, first, ["image", "label"]) == 2 * 40 * 16 * 4 + 8
    assert mean_bytes(store, first, ["series"]) == 4 * 3 * 4  # lengths 1..7 average 4
    assert mean_bytes(store, first, ["coded"]) == 27
    assert mean_bytes(store, first, ["coded"], is_restored=True) == 27 * 4
    assert mean_bytes(store, first[:0], ["series"]) == 0
