"""A split on the device: the batches, order and state of the ordinary path, read once."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.errors import ConfigError, LoaderError
from flatout.loader import resident
from flatout.loader.fetch import ReadRule
from flatout.loader.loader import FastDataLoader
from flatout.loader.machine import Machine
from flatout.loader.resident import free_bytes
from flatout.store import DataPreprocessor, StoreReader

NUM_ITEMS = 61
FIELDS = {
    "coded": {"kind": "transform", "encoding": "uint8"},
    "fine": {"kind": "transform", "encoding": "int16", "compression": "zstd"},
    "half": {"kind": "transform", "encoding": "bfloat16"},
    "packed": {"kind": "transform", "compression": "gzip"},
}


def item(number: int) -> dict[str, Any]:
    random = np.random.default_rng(number)
    return {
        "image": random.random((2, 30, 8), np.float32),
        "coded": random.random((3, 9), np.float32),
        "fine": random.random((40,), np.float32),
        "half": random.random((70,), np.float32),
        "packed": random.integers(0, 9, (50,)).astype(np.int32),
        "counts": random.integers(0, 60000, (33,)).astype(np.uint16),
        "flags": random.random((3,)) < 0.5,
        "label": number % 5,
    }


@pytest.fixture(scope="module")
def square(tmp_path_factory: pytest.TempPathFactory) -> StoreReader:
    """A store of every form that has one shape."""
    folder = tmp_path_factory.mktemp("square") / "store"
    items = [item(number) for number in range(NUM_ITEMS)]
    DataPreprocessor.from_dataset(items, folder, num_workers=0, fields=FIELDS).run()
    return StoreReader(folder)


def loader_of(store: StoreReader, batch_size: int, **others: Any) -> FastDataLoader:
    on_device = others.pop("on_device", True)
    return FastDataLoader(
        store, batch_size, **{"seed": 5, "num_workers": 0, "read": ReadRule(on_device=on_device), **others}
    )


def check_same(found: Any, wanted: Any) -> None:
    for batch, other in zip(found, wanted, strict=True):
        assert list(batch) == list(other)
        for name, value in batch.items():
            assert value.dtype == other[name].dtype
            assert torch.equal(value, other[name]), name


@given(
    st.integers(1, 70), st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 70), st.integers(1, 3)
)
@settings(deadline=None, max_examples=30)
def test_batches_order_and_state_are_those_of_the_ordinary_path(
    square: StoreReader,
    batch_size: int,
    num_workers: int,
    shuffle: bool,
    drop_last: bool,
    stop: int,
    world_size: int,
) -> None:
    choices: dict[str, Any] = {"shuffle": shuffle, "drop_last": drop_last, "world_size": world_size, "rank": 0}
    plain = loader_of(square, batch_size, on_device=False, **choices)
    loader = loader_of(square, batch_size, num_workers=num_workers, **choices)
    assert len(loader) == len(plain)
    for at, (batch, other) in enumerate(zip(loader, plain, strict=True)):
        check_same([batch], [other])
        if at == stop:
            break
    assert loader.state_dict() == plain.state_dict()
    resumed = loader_of(square, batch_size, **choices)
    resumed.load_state_dict(plain.state_dict())
    rest = loader_of(square, batch_size, on_device=False, **choices)
    rest.load_state_dict(loader.state_dict())
    check_same(resumed, rest)
    loader.close()


def test_it_is_read_once(tmp_path: Path) -> None:
    items = [{"x": np.full((2000,), number, np.float32)} for number in range(9)]
    DataPreprocessor.from_dataset(items, tmp_path / "s", num_workers=0).run()
    loader = loader_of(StoreReader(tmp_path / "s"), 4, shuffle=True)
    before = [batch["x"].clone() for batch in loader]
    for path in (tmp_path / "s").rglob("*.h5"):
        data = bytearray(path.read_bytes())
        data[-4000:] = bytes(4000)
        with open(path, "rb+") as file:
            file.write(data)
    loader.set_epoch(0)
    after = [batch["x"] for batch in loader]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_a_batch_is_the_consumers_own(square: StoreReader) -> None:
    loader = loader_of(square, 16)
    for batch in loader:
        for value in batch.values():
            value.zero_()
    loader.set_epoch(0)
    check_same(loader, loader_of(square, 16, on_device=False))


def test_it_travels_by_pickle_without_its_memory(square: StoreReader) -> None:
    loader = loader_of(square, 8)
    list(loader)
    data = pickle.dumps(loader)
    assert len(data) < len(pickle.dumps(loader_of(square, 8))) + 1000
    copy = pickle.loads(data)
    copy.set_epoch(0)
    check_same(copy, loader_of(square, 8, on_device=False))


def test_what_does_not_fit_is_refused_with_the_numbers_before_it_is_read(
    square: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = Machine("linux", 2, 1 << 20, 100_000)
    monkeypatch.setattr(resident, "describe_machine", lambda **_: tiny)
    monkeypatch.setattr("flatout.loader.fetch.Fetcher.fetch", lambda *_: pytest.fail("a sample was read"))
    with pytest.raises(LoaderError, match=r"cache_on_device: 1\d\d\.\d KiB do not fit into 97\.7 KiB.*'cpu'"):
        next(iter(loader_of(square, 8)))


def test_ragged_fields_are_refused_by_name(store: StoreReader) -> None:
    with pytest.raises(ConfigError, match="field 'series' differ in shape"):
        next(iter(loader_of(store, 8)))


def test_free_memory_is_the_devices_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (123, 456) if device.index == 1 else (7, 8))
    machine = Machine("linux", 2, 1 << 30, 99)
    assert free_bytes(torch.device("cuda:1"), machine) == 123
    assert free_bytes(torch.device("cpu"), machine) == 99
    assert free_bytes(torch.device("cpu")) > 1000


def test_the_other_device_gets_the_batches(square: StoreReader) -> None:
    """`meta` has shapes and dtypes but no values: whatever stays on the CPU shows."""
    loader = loader_of(square, 8, device="meta")
    for batch, other in zip(loader, loader_of(square, 8, on_device=False), strict=True):
        assert {value.device.type for value in batch.values()} == {"meta"}
        assert {name: value.shape for name, value in batch.items()} == {
            name: value.shape for name, value in other.items()
        }


def test_ragged_fields_that_are_not_read_do_not_matter(store: StoreReader) -> None:
    rule = ReadRule(on_device=True, fields=("image", "coded", "label"))
    held = FastDataLoader(store, 16, num_workers=0, read=rule)
    plain = FastDataLoader(store, 16, num_workers=0, read=ReadRule(fields=rule.fields))
    for batch, wanted in zip(held, plain, strict=True):
        assert batch.keys() == wanted.keys()
        assert all(torch.equal(batch[name], wanted[name]) for name in wanted)
