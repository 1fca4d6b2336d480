"""A key for each row: a text that is unique and depends on the row alone, so that added rows move nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3
from numpy.typing import NDArray

from flatout.errors import ManifestError
from flatout.source.arrow import as_text, join_text, one_piece
from flatout.source.digests import digest_rows
from flatout.source.lists import ListColumns

ID_NAMES = (
    "key", "id", "uid", "uuid", "guid", "sample_id", "sampleid", "sample", "utt_id", "utterance_id",
    "utterance", "image_id", "imageid", "record_id", "recordid", "record", "file_id", "fileid", "scan_id",
    "study_uid", "series_uid", "case_id", "example_id", "name",
)  # fmt: skip
"""Columns taken as key when unique, by lower-case name, the first found first."""

_BLOCK = 65_536


def choose_keys(
    table: pa.Table,
    path_columns: Sequence[str] = (),
    key_column: str | None = None,
    lists: ListColumns | None = None,
) -> tuple[pa.Array, str]:
    """The key of each row (large_string), and a sentence that says where it comes from.

    In turn: the column asked for; a column with the name of an id, if unique and complete; the row's first
    path, with `@offset` for segments that start later than 0 (NeMo); a hash of the row's content, with -2, -3
    for repeats. Rows that share a first path have all their paths joined, then a hash of their content added.

    Raises:
        ManifestError: the column asked for is absent, incomplete or not unique.
    """
    if key_column is not None:
        return _asked_for(table, key_column), f"key: column '{key_column}'"
    for name in _id_columns(table):
        keys = as_text(table[name])
        if _is_usable(keys):
            return keys, f"key: column '{name}'"
    if any(name in table.column_names for name in path_columns):
        return _from_paths(table, path_columns, lists)
    return _from_content(table, lists), "key: a hash of the row's content; set key_column for a better one"


def key_hashes(keys: pa.Array | pa.ChunkedArray | Sequence[str]) -> NDArray[np.uint64]:
    """64-bit hash of each key: first 8 bytes, little endian, of blake3 of its UTF-8. About 0.5 us a key.

    Two keys may share a hash (1 chance in 370,000 among 10 million); whoever relies on it looks for that.
    """
    hashes = []
    for start in range(0, len(keys), _BLOCK):
        part = keys[start : start + _BLOCK]
        texts = part.to_pylist() if isinstance(part, pa.Array | pa.ChunkedArray) else part
        hashes.append(b"".join([blake3(text.encode()).digest(8) for text in texts]))
    return np.frombuffer(b"".join(hashes), "<u8").astype(np.uint64)


def _asked_for(table: pa.Table, name: str) -> pa.Array:
    if name not in table.column_names:
        raise ManifestError(f"key_column '{name}' is not a column; there are: {', '.join(table.column_names)}")
    keys = as_text(table[name])
    empty = pc.or_kleene(pc.is_null(keys), pc.equal(keys, "").fill_null(True))
    if pc.any(empty).as_py():
        row = pc.index(empty, True).as_py() + 1
        raise ManifestError(f"key_column '{name}' is empty in row {row}; every sample needs a key")
    if pc.count_distinct(keys).as_py() < len(keys):
        raise _not_unique(keys, name)
    return keys


def _not_unique(keys: pa.Array, name: str) -> ManifestError:
    codes = keys.dictionary_encode().indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    later = order[1:][np.diff(codes[order]) == 0].min()
    rows = np.flatnonzero(codes == codes[later])
    told = ", ".join(str(row + 1) for row in rows[:5]) + (", ..." if len(rows) > 5 else "")
    key = keys[int(later)].as_py()
    return ManifestError(f"key_column '{name}' is not unique: rows {told} are all '{key}'")


def _id_columns(table: pa.Table) -> list[str]:
    by_name = {name.lower(): name for name in reversed(table.column_names)}
    return [by_name[name] for name in ID_NAMES if name in by_name]


def _is_usable(keys: pa.Array) -> bool:
    """Unique and complete."""
    if keys.null_count or pc.any(pc.equal(keys, "")).as_py():
        return False
    return bool(pc.count_distinct(keys).as_py() == len(keys))


def _from_paths(
    table: pa.Table, path_columns: Sequence[str], lists: ListColumns | None
) -> tuple[pa.Array, str]:
    """Each row's first path. Only rows that share it get a longer key, so that a repeat moves no other row."""
    paths = [as_text(table[name]) for name in path_columns if name in table.column_names]
    keys = _with_offset(table, pc.coalesce(*paths))
    told = f"key: column '{path_columns[0]}'"
    if _is_usable(keys):
        return keys, told
    if len(paths) > 1:
        told = f"key: columns {' and '.join(repr(name) for name in path_columns)}"
        keys = pc.if_else(_repeated(keys), _with_offset(table, join_text(*paths, by="|", missing="")), keys)
    unclear = _repeated(keys)
    if pc.any(unclear).as_py():
        told += f"; {pc.sum(unclear).as_py():,} rows without a path of their own are told apart by content"
        content = _from_content(table, lists)
        keys = _numbered(pc.if_else(unclear, join_text(keys, content, by="#", missing=""), keys))
    return keys, told


def _with_offset(table: pa.Table, paths: pa.Array) -> pa.Array:
    """Paths with `@start` for rows that begin later than 0 s in their file."""
    starts = table["offset"] if "offset" in table.column_names else None
    if starts is None or not (pa.types.is_integer(starts.type) or pa.types.is_floating(starts.type)):
        return paths
    # Decided row by row: a file that stands once today may be cut into segments tomorrow.
    late = one_piece(pc.not_equal(starts, 0).fill_null(False))
    return pc.if_else(late, join_text(paths, as_text(starts), by="@"), paths)


def _repeated(keys: pa.Array) -> pa.Array:
    """Marks keys that are missing, empty, or those of several rows."""
    codes = pc.fill_null(keys, "").dictionary_encode()
    counts = np.bincount(codes.indices.to_numpy(), minlength=1)
    many = pa.array(counts[codes.indices.to_numpy()] > 1)
    return pc.or_(many, pc.equal(pc.fill_null(keys, ""), ""))


def _from_content(table: pa.Table, lists: ListColumns | None) -> pa.Array:
    names = [*table.column_names, *(lists.names if lists else ())]
    hashes = digest_rows(table, names, lists)
    return _numbered(pa.array([f"{value:016x}" for value in hashes.tolist()], pa.large_string()))


def _numbered(keys: pa.Array) -> pa.Array:
    """Keys with -2, -3 for repeats."""
    if pc.count_distinct(keys).as_py() == len(keys):
        return keys
    texts: list[str] = keys.to_pylist()
    taken, seen = set(texts), dict[str, int]()
    for i, text in enumerate(texts):
        seen[text] = seen.get(text, 0) + 1
        if seen[text] > 1:
            while (numbered := f"{text}-{seen[text]}") in taken:
                seen[text] += 1
            texts[i] = numbered
            taken.add(numbered)
    return pa.array(texts, pa.large_string())
