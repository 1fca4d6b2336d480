"""A 64-bit hash of each row's values: equal rows have equal hashes, wherever they stand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import repeat

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from flatout.errors import ManifestError
from flatout.source.arrow import as_text, join_text, one_piece
from flatout.source.identity import hash_text
from flatout.source.lists import ListColumns

BLOCK_ROWS = 65_536
"""Rows whose text stands in memory at one time."""


def digest_rows(
    table: pa.Table, columns: Sequence[str], lists: ListColumns | None = None
) -> NDArray[np.uint64]:
    """Hash of the named columns' values in each row: XXH3 with 64 bits, seeded by the columns' names.

    A number has one hash whether its column is integer or float; a text never equals a number. Lists are
    hashed by content, paths by their text. About 1 us a row of three columns.
    """
    names = sorted(set(columns))
    list_names = set(lists.names) if lists else set()
    for name in names:
        if name not in list_names and name not in table.column_names:
            raise ManifestError(f"no column '{name}'; there are: {', '.join(table.column_names)}")
    cells = {name: lists.digests(name) for name in names if lists and name in list_names}
    num_rows = len(lists) if lists else table.num_rows
    seed = hash_text(json.dumps(names))
    hashes = np.empty(num_rows, np.uint64)
    for start in range(0, num_rows, BLOCK_ROWS):
        end = min(start + BLOCK_ROWS, num_rows)
        texts = [
            pc.cast(pa.array(cells[name][start:end]), pa.large_string())
            if name in cells
            else _cell_texts(table[name].slice(start, end - start))
            for name in names
        ]
        rows = _row_texts(texts, end - start)
        hashes[start:end] = np.fromiter(map(xxh3_64_intdigest, rows, repeat(seed)), np.uint64, end - start)
    return hashes


def _row_texts(cells: list[pa.Array], num_rows: int) -> list[bytes]:
    """Each row's cells on end, every cell after its length, so that no two rows run into one another."""
    if not cells:
        return [b""] * num_rows
    parts: list[pa.Array] = []
    for cell in cells:
        parts += [pc.cast(pc.binary_length(cell), pa.large_string()), pc.fill_null(cell, "")]
    rows = join_text(*parts, by=":", missing="-")
    found: list[bytes] = rows.cast(pa.large_binary()).to_pylist()
    return found


def _cell_texts(column: pa.ChunkedArray) -> pa.Array:
    """One text a cell, its first character the type; null stays null."""
    kind = column.type
    if pa.types.is_floating(kind):
        return join_text("#", float_texts(one_piece(column).cast(pa.float64())), by="")
    is_text = pa.types.is_large_string(kind) or pa.types.is_string(kind)
    return join_text("s" if is_text else "#" if pa.types.is_integer(kind) else "o", as_text(column), by="")


def float_texts(array: pa.Array) -> pa.Array:
    """Shortest text that reads back as the same number; whole numbers as an integer column has them."""
    whole = pc.and_(pc.equal(pc.floor(array), array), pc.less(pc.abs(array), 2.0**53)).fill_null(False)
    integers = pc.if_else(whole, array, 0.0).cast(pa.int64()).cast(pa.large_string())
    return pc.if_else(whole, integers, array.cast(pa.large_string()))
