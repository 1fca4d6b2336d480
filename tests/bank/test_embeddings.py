"""A frozen encoder's outputs as a field: those of eval(), in index order, in this store or another."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.bank.conftest import NUM_ITEMS, Signals, make_store
from tests.bank.encoders import Encoder, encode, half

from flatout.bank import precompute_embeddings
from flatout.errors import ConfigError, LoaderError, StoreError, StoreLockedError, StoreSpaceError
from flatout.loader import FastDataLoader
from flatout.store import StoreReader, verify
from flatout.store.lock import locked


@pytest.fixture
def own(folder: Path, tmp_path: Path) -> Path:
    """A store that may be changed."""
    return Path(shutil.copytree(folder, tmp_path / "own"))


def test_outputs_become_a_field_of_the_store(own: Path) -> None:
    torch.manual_seed(3)
    encoder = Encoder()
    encoder.train()
    before = [StoreReader(own).read(at) for at in range(NUM_ITEMS)]
    made = precompute_embeddings(own, encoder, batch_size=7, device="cpu")
    store = StoreReader(own)
    assert verify(own)
    assert made.field == store.fields["embedding"]
    assert (made.field.dtype, made.field.shape) == ("float32", (3,))
    with torch.no_grad():
        for at, sample in enumerate(before):
            expected = encoder.eval()(torch.from_numpy(sample["signal"])[None])[0].numpy()
            np.testing.assert_allclose(store.read(at)["embedding"], expected, rtol=1e-5, atol=1e-6)
            assert np.array_equal(store.read(at)["signal"], sample["signal"])
    batch = next(iter(FastDataLoader(own, 4)))
    assert batch["embedding"].shape == (4, 3)
    assert not list(own.rglob("*.tmp"))


def test_once_more_replaces_it(own: Path) -> None:
    precompute_embeddings(own, Encoder, device="cpu")
    made = precompute_embeddings(own, encode, device="cpu")
    assert made.field.shape == (1,)
    assert StoreReader(own).read(4)["embedding"] == StoreReader(own).read(4)["signal"].max()


def test_another_store_leaves_this_one_as_it_is(folder: Path, tmp_path: Path) -> None:
    root = (folder / "data_metadata.json").read_bytes()
    made = precompute_embeddings(
        folder, encode, name="peak", output=tmp_path / "small", keep=["label"], device="cpu"
    )
    assert (folder / "data_metadata.json").read_bytes() == root
    assert verify(tmp_path / "small")
    assert list(StoreReader(tmp_path / "small").fields) == ["label", "peak"]
    assert made.to_json()["samples"] == NUM_ITEMS
    with pytest.raises(ConfigError, match="is a store already"):
        precompute_embeddings(folder, encode, output=tmp_path / "small", device="cpu")


def test_half_precision_is_stored_as_float32(own: Path) -> None:
    assert precompute_embeddings(own, half, device="cpu").field.dtype == "float32"


def test_samples_of_differing_length_are_encoded_one_by_one(tmp_path: Path) -> None:
    class Ragged(Signals):
        def __getitem__(self, at: int) -> dict[str, Any]:
            return {"signal": super().__getitem__(at)["signal"][:, : 20 + at % 5] - 9, "label": 0}

    folder = make_store(tmp_path / "store", Ragged(9))
    precompute_embeddings(folder, encode, device="cpu")  # padding would be the largest value
    store = StoreReader(folder)
    for at in range(9):
        assert store.read(at)["embedding"] == store.read(at)["signal"].max()


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (lambda x: x[:1], "for 7 samples"),
        (lambda x: [x], "gave list"),
        (lambda x: x[:, 0, :0], r"gave \(7, 0\)"),
        (lambda x: x.mean(), r"gave \(\) for 7 samples"),
        (lambda x: x.mean(-1) / 0, "NaN or infinity for sample '0'"),
        (lambda x: x[:, 0, : len(x)], "one shape"),
    ],
)
def test_outputs_that_cannot_be_a_field(own: Path, encoder: Any, message: str) -> None:
    with pytest.raises(LoaderError, match=message):
        precompute_embeddings(own, encoder, batch_size=7, device="cpu")
    assert "embedding" not in StoreReader(own).fields
    assert verify(own)
    assert not list(own.rglob("*.tmp"))


def test_what_is_asked_for_is_checked_before_the_work(own: Path) -> None:
    def never(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("it was run")

    for settings, message in (
        ({"field": "sound"}, "no field 'sound'"),
        ({"name": "a b"}, "cannot be used"),
        ({"keep": ["label"]}, "another store"),
        ({"keep": ["lable"], "output": own.parent / "new"}, "no field 'lable'"),
    ):
        with pytest.raises(ConfigError, match=message):
            precompute_embeddings(own, never, device="cpu", **settings)  # type: ignore[arg-type]
    with locked(own), pytest.raises(StoreLockedError):
        precompute_embeddings(own, never, device="cpu")


def test_an_unfinished_prepare_is_finished_first(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.store.journal.find", lambda folder: object())
    with pytest.raises(StoreError, match="unfinished prepare"):
        precompute_embeddings(own, encode, device="cpu")


def test_a_full_disk_is_told_before_it_kills(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full, raising=False)
    with pytest.raises(StoreSpaceError, match="No space left"):
        precompute_embeddings(own, encode, device="cpu")
    assert "embedding" not in StoreReader(own).fields
    assert verify(own)
    assert not list(own.rglob("*.tmp"))
