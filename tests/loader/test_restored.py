"""RestoredPart: encoded fields restored by the producers, to the bit as the store restores them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flatout.loader.loader import FastDataLoader
from flatout.loader.restored import CHUNK, _blocks, _copy
from flatout.store import DataPreprocessor, StoreReader

ENCODINGS = ("uint8", "int16", "float16", "bfloat16")
NUM_ITEMS = 23


class Items:
    """Rows shorter than a block, as long as one, and longer."""

    def __len__(self) -> int:
        return NUM_ITEMS

    def __getitem__(self, at: int) -> dict[str, Any]:
        random = np.random.default_rng(at)
        lengths = {"short": 40, "even": CHUNK, "long": 2 * CHUNK + 7}
        return {
            f"{name}_{encoding}": (random.normal(size=length) * (at + 1)).astype(np.float32)
            for name, length in lengths.items()
            for encoding in ENCODINGS
        }


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> StoreReader:
    folder: Path = tmp_path_factory.mktemp("restored") / "store"
    names = Items()[0]
    fields = {name: {"kind": "transform", "encoding": name.partition("_")[2]} for name in names}
    DataPreprocessor.from_dataset(Items(), folder, num_workers=0, fields=fields).run()
    return StoreReader(folder)


def wanted(store: StoreReader, name: str, row: int) -> Any:
    return store.shard(int(store.numbers["shard"][row])).read(name, int(store.numbers["row"][row]))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_have_the_bits_that_the_store_restores(encoded: StoreReader, num_workers: int) -> None:
    rows = {int(key): row for row, key in enumerate(encoded.numbers["key_hash"].view(np.int64))}
    loader = FastDataLoader(encoded, 4, shuffle=True, num_workers=num_workers)
    seen = 0
    for batch in loader:
        assert not [name for name in batch if "/" in name]
        for at, key in enumerate(batch["key"].tolist()):
            seen += 1
            for name in encoded.fields:
                assert batch[name].dtype == torch.float32
                assert np.array_equal(batch[name][at].numpy(), wanted(encoded, name, rows[key]))
    assert seen == NUM_ITEMS
    loader.close()


def test_what_is_not_restored_here_is_restored_on_arrival(encoded: StoreReader) -> None:
    """As for another device: codes travel, and become the same numbers there."""
    early = FastDataLoader(encoded, 4, num_workers=0)
    late = FastDataLoader(encoded, 4, num_workers=0)
    late._restores_early = False
    late._encoded = {name: spec for name, spec in encoded.fields.items() if spec.encoding != "none"}
    for one, other in zip(early, late, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert torch.equal(value, other[name])


def test_codes_are_handed_out_on_request(encoded: StoreReader) -> None:
    batch = next(iter(FastDataLoader(encoded, 4, restore=False)))
    assert batch["long_uint8"].dtype == torch.uint8
    assert batch["long_uint8/scale"].shape == (4, 2)


def test_float16_is_rounded_as_numpy_rounds() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint32)
    work = bits.view(np.float32)
    work = work[np.isfinite(work)][None]
    found = np.empty(work.shape, np.float16)
    _copy(work, found)
    with np.errstate(over="ignore"):
        assert np.array_equal(found, work.astype(np.float16))


@given(st.integers(0, 40), st.integers(0, 3 * CHUNK))
def test_blocks_cover_everything_once(num_rows: int, num_columns: int) -> None:
    seen = np.zeros((num_rows, num_columns), np.int8)
    for rows, columns in _blocks(num_rows, num_columns):
        seen[rows, columns] += 1
        assert seen[rows, columns].size <= CHUNK
    assert (seen == 1).all()
