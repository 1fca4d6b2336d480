"""Seconds in a manifest's column, whatever its type: one odd cell makes all of a column text."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"


def any_seconds(column: pa.ChunkedArray) -> bool:
    """Whether it is a column of numbers, or one of texts with a number among them."""
    return is_number(column.type) or bool(pc.any(_are_numbers(column)).as_py())


def any_later_start(column: pa.ChunkedArray) -> bool:
    """Whether any cell is a number other than 0."""
    if is_number(column.type):
        return bool(pc.any(pc.not_equal(column, 0)).as_py())
    texts = column.filter(_are_numbers(column).fill_null(False))
    return any(float(text) != 0 for text in texts.unique().to_pylist())


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _are_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which cells are texts that hold a number; null where a cell is missing."""
    if not (pa.types.is_large_string(column.type) or pa.types.is_string(column.type)):
        return pa.chunked_array([pa.repeat(False, len(column))])
    return pc.match_substring_regex(pc.utf8_trim_whitespace(column), _NUMBER)
