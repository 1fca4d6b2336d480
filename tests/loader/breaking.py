"""Stores to break: every form of field, large enough for a checksum of its own, and bits to flip in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flatout.store import DataPreprocessor, StoreReader, layout

NUM_ITEMS = 24
ONE_SHAPE = ("image", "coded", "packed", "label")
"""Fields of one shape."""


def item(number: int, names: tuple[str, ...]) -> dict[str, Any]:
    """A function of its number alone."""
    random = np.random.default_rng(number)
    sample = {
        "image": random.random((2000,), np.float32),
        "coded": random.random((5000,), np.float32),
        "packed": random.random((1500,), np.float32),
        "wave": random.random((1500 + 50 * number, 1), np.float32),
        "rolled": random.random((1200 + 30 * number,), np.float32),
        "label": number % 3,
    }
    return {name: sample[name] for name in names}


FIELDS = {
    "coded": {"kind": "transform", "encoding": "uint8"},
    "packed": {"kind": "transform", "compression": "zstd", "encoding": "int16"},
    "wave": {"kind": "sequence"},
    "rolled": {"kind": "sequence", "compression": "gzip"},
}


def make_store(folder: Path, names: tuple[str, ...] = (*ONE_SHAPE, "wave", "rolled")) -> StoreReader:
    fields = {name: FIELDS[name] for name in names if name in FIELDS}
    items = [item(number, names) for number in range(NUM_ITEMS)]
    DataPreprocessor.from_dataset(items, folder, num_workers=0, fields=fields).run()
    return StoreReader(folder)


def bytes_of(store: StoreReader, position: int, name: str) -> tuple[Path, int, int]:
    """File, offset and size of a sample's bytes of one field."""
    shard = store.shard(int(store.numbers["shard"][position]))
    row = int(store.numbers["row"][position])
    if store.fields[name].compression != "none":
        offset, size = shard.tables[layout.chunks_path(name)][row].tolist()
        return shard.path, offset, size
    base = shard.offset_of(name)
    assert base is not None
    start, stop = shard.byte_range(name, row)
    return shard.path, base + start, stop - start


def flip(store: StoreReader, position: int, name: str) -> None:
    """Change a bit in the middle of a sample."""
    path, offset, size = bytes_of(store, position, name)
    path.chmod(0o600)
    with open(path, "rb+") as file:
        file.seek(offset + size // 2)
        (byte,) = file.read(1)
        file.seek(offset + size // 2)
        file.write(bytes([byte ^ 16]))


def key_hashes(store: StoreReader) -> list[int]:
    """What `key` of a batch has, by position."""
    return store.numbers["key_hash"].view(np.int64).tolist()  # type: ignore[no-any-return]
