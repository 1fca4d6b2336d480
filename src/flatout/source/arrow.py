"""Arrow columns in one piece, as text, and joined: what every part of the manifest does with them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

MISSING_WORDS = pa.array(
    ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", "None"], pa.large_string()
)
"""What stands for no number in a column of numbers, as pandas reads it."""


def one_piece(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one array."""
    if isinstance(column, pa.ChunkedArray):
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column


def as_text(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column in one piece as large_string (32-bit offsets end at 2 GiB of text); null stays null."""
    array = one_piece(column)
    try:
        return pc.cast(array, pa.large_string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        texts = [None if value is None else str(value) for value in array.to_pylist()]
        return pa.array(texts, pa.large_string())


def join_text(*parts: pa.Array | str, by: str, missing: str | None = None) -> pa.Array:
    """Texts joined row by row; where one is null the result is null, or `missing` stands for it."""
    columns = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in parts]
    handling = "emit_null" if missing is None else "replace"
    return pc.binary_join_element_wise(
        *columns, pa.scalar(by, pa.large_string()), null_handling=handling, null_replacement=missing or ""
    )
