"""The index file: one row a sample, in manifest order. Numbers are loaded, strings stay on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flatout.errors import StoreCorruptError
from flatout.source import hash_file
from flatout.store.files import sync_file, sync_folder, temporary_beside
from flatout.types import FieldSpec

ROW_GROUP = 1 << 20

NUMBERS = {
    "key_hash": pa.uint64(),
    "split": pa.int8(),
    "group": pa.uint64(),
    "shard": pa.int32(),
    "row": pa.int32(),
}
"""What the loader reads, beside one length a ragged field."""

RECORDS = {
    "part": pa.int32(),
    "digest": pa.uint64(),
    "fingerprint": pa.uint64(),
    "by_content": pa.bool_(),
    "size": pa.int64(),
    "mtime_ns": pa.int64(),
    "key": pa.string(),
    "path": pa.string(),
}
"""What prepare and verify read."""


def length_column(name: str) -> str:
    """Column with the number of elements of a ragged field's samples."""
    return f"length_{name}"


def index_schema(fields: Sequence[FieldSpec]) -> Any:
    """The index's columns in order."""
    lengths = {length_column(spec.name): pa.int64() for spec in fields if spec.is_ragged}
    return pa.schema(list((NUMBERS | lengths | RECORDS).items()))


def write_index(folder: Path, table: Any) -> tuple[str, str]:
    """Write `index-<hash>.parquet` durably; its name and blake3 out."""
    temporary = temporary_beside(folder / "index.parquet")
    strings = [name for name, kind in RECORDS.items() if kind == pa.string()]
    try:
        pq.write_table(
            table,
            temporary,
            row_group_size=ROW_GROUP,
            use_dictionary=False,
            # Numbers uncompressed: 10 million rows open in a fraction of a second.
            compression={name: "zstd" if name in strings else "none" for name in table.column_names},
        )
        digest = hash_file(temporary)
        path = folder / f"index-{digest[:16]}.parquet"
        with open(temporary, "rb+") as file:
            sync_file(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(folder)
    return path.name, digest


def read_index(path: Path, columns: Sequence[str] | None = None) -> Any:
    """The named columns (all by default) as one Arrow table.

    Raises:
        StoreCorruptError: the file is missing or damaged.
    """
    try:
        # The file is read, not mapped: a mapping would count as the reader's resident memory.
        return pq.read_table(path, columns=None if columns is None else list(columns))
    except (OSError, pa.ArrowException, KeyError) as error:
        raise StoreCorruptError(
            f"index {path} cannot be read: {error}. 'flatout verify {path.parent} --repair' rebuilds it"
        ) from error
