"""LMDB: key -> an npz of the sample's fields, and `__keys__` -> the keys in order. Needs the package lmdb."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np

from flatout.errors import MissingDependencyError
from flatout.store.export.export import Samples

BATCH = 256
"""Samples a transaction: one each would sync the disk every time."""
SPARE_BYTES = 64 << 20


def write(samples: Samples, path: Path) -> None:
    """Write an LMDB folder; values load with `np.load(io.BytesIO(value), allow_pickle=False)`."""
    try:
        import lmdb
    except ImportError as error:
        raise MissingDependencyError("export to lmdb needs the package lmdb: pip install lmdb") from error
    size = 2 * sum(shard.size for shard in samples.store.meta.shards) * 8 + SPARE_BYTES
    keys: list[str] = []
    with lmdb.open(str(path), map_size=size) as database:
        transaction = database.begin(write=True)
        for position, sample in enumerate(samples):
            buffer = io.BytesIO()
            np.savez(buffer, allow_pickle=False, **sample.arrays)
            transaction.put(_name(sample.key, position), buffer.getvalue())
            keys.append(_name(sample.key, position).decode())
            if position % BATCH == BATCH - 1:
                transaction.commit()
                transaction = database.begin(write=True)
        transaction.put(b"__keys__", json.dumps(keys).encode())
        transaction.commit()


def _name(key: str, position: int) -> bytes:
    """The sample's key; its position where the key is longer than LMDB takes (511 bytes)."""
    name = key.encode()
    return name if len(name) <= 500 else f"#{position}".encode()
