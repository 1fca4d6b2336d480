"""LMDB: key -> an npz of the sample's fields, and `__keys__` -> the keys in order. Needs the package lmdb."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from flatout.errors import MissingDependencyError
from flatout.store.export.export import Samples
from flatout.store.reader import StoreReader
from flatout.store.summary import restored_bytes

BATCH = 256
"""Samples a transaction: one each would sync the disk every time."""
FIELD_BYTES = 8 << 10
SPARE_BYTES = 64 << 20


def write(samples: Samples, path: Path) -> None:
    """Write an LMDB folder; values load with `np.load(io.BytesIO(value), allow_pickle=False)`."""
    try:
        import lmdb
    except ImportError as error:
        raise MissingDependencyError("export to lmdb needs the package lmdb: pip install lmdb") from error
    try:
        with lmdb.open(str(path), map_size=_most_bytes(samples.store)) as database:
            _fill(database, samples)
    except lmdb.Error as error:
        raise OSError(str(error)) from error  # an I/O error where the disk is full


def _fill(database: Any, samples: Samples) -> None:
    keys: list[str] = []
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


def _most_bytes(store: StoreReader) -> int:
    """How large the map may grow: values restored, and for each field of a sample a page and npz's tables."""
    values = sum(restored_bytes(store, spec) for spec in store.meta.fields)
    return 2 * (values + len(store) * len(store.meta.fields) * FIELD_BYTES) + SPARE_BYTES


def _name(key: str, position: int) -> bytes:
    """The sample's key; its position where the key is longer than LMDB takes (511 bytes)."""
    name = key.encode()
    return name if len(name) <= 500 else f"#{position}".encode()
