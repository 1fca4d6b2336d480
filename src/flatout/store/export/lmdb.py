"""LMDB: key -> an npz of the sample's fields, and `__keys__` -> the keys in order. Needs the package lmdb."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flatout.errors import MissingDependencyError
from flatout.store.export.export import Samples
from flatout.store.reader import StoreReader
from flatout.store.summary import restored_bytes
from flatout.types import Array

KEYS = b"__keys__"
MAX_NAME_BYTES = 500
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
        # Its lock file is a map: to touch that on a full disk would end this process, and nobody else is here.
        with lmdb.open(str(path), map_size=_most_bytes(samples.store), lock=False) as database:
            _fill(database, samples)
    except lmdb.Error as error:
        raise OSError(str(error)) from error  # an I/O error where the disk is full


def _fill(database: Any, samples: Samples) -> None:
    keys: list[str] = []
    transaction = database.begin(write=True)
    for position, sample in enumerate(samples):
        transaction.put(_name(sample.key, position), _npz(sample.arrays))
        keys.append(_name(sample.key, position).decode())
        if position % BATCH == BATCH - 1:
            transaction.commit()
            transaction = database.begin(write=True)
    transaction.put(KEYS, json.dumps(keys).encode())
    transaction.commit()


def _npz(arrays: Mapping[str, Array]) -> bytes:
    """As `np.savez` writes it, which takes no array that is called `file`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return buffer.getvalue()


def _most_bytes(store: StoreReader) -> int:
    """How large the map may grow: values restored, and for each field of a sample a page and npz's tables."""
    values = sum(restored_bytes(store, spec) for spec in store.meta.fields)
    return 2 * (values + len(store) * len(store.meta.fields) * FIELD_BYTES) + SPARE_BYTES


def _name(key: str, position: int) -> bytes:
    """The sample's key; its position where that is too long for LMDB (511 bytes), or another's name."""
    name = key.encode()
    is_own = len(name) <= MAX_NAME_BYTES and name != KEYS and not name.startswith(b"#")
    return name if is_own else f"#{position}".encode()
