"""Which numbers of the manifest lose digits that a reader would miss when they are stored as float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flatout.types import Array

if TYPE_CHECKING:
    from flatout.config.fields import AnyField

VISIBLE_LOSS = 0.01
"""A smaller difference is that of any measurement: 0.1 itself is off by 1.5e-9."""
LARGEST_SAFE = 2**18
"""Up to here float32 lies within VISIBLE_LOSS."""


def digit_notes(fields: Mapping[str, AnyField], table: pa.Table) -> dict[str, str]:
    """A note by name on each scalar field of open dtype that changes a number of its column.

    Only said: a dtype chosen by the values would be another one as soon as rows are added.
    """
    notes = {}
    for name, section in fields.items():
        column = section.column or name
        if section.kind != "scalar" or section.dtype is not None or column not in table.column_names:
            continue
        if lost := _first_lost(table[column]):
            value, stored, dtype = lost
            notes[name] = (
                f"field '{name}': float32 holds 7 digits, so {value} is stored as {stored}; "
                f"set fields.{name}.dtype: {dtype} to keep them"
            )
    return notes


def _first_lost(column: pa.ChunkedArray) -> tuple[str, str, str] | None:
    """The first number that float32 changes, what becomes of it, and the dtype that holds it."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return None
    bounds = pc.min_max(column).as_py()  # 0.3 ms for 100,000 rows; all that follows, 1 ms
    if bounds["min"] is None or -LARGEST_SAFE <= bounds["min"] <= bounds["max"] <= LARGEST_SAFE:
        return None
    exact: Array = column.drop_null().to_numpy()
    are_integers = exact.dtype.kind in "iu"
    with np.errstate(over="ignore", invalid="ignore"):
        stored = exact.astype(np.float32)
        is_lost = _is_too_long(exact) if are_integers else np.abs(exact - stored) > VISIBLE_LOSS
    if not is_lost.any():
        return None
    at = int(is_lost.argmax())
    return str(exact[at]), f"{stored[at]:.17g}", str(exact.dtype) if are_integers else "float64"


def _is_too_long(integers: Array) -> Array:
    """Whether each needs more than the 24 bits that float32 has; by its bits, as float64 is no judge of 64."""
    bits = integers.astype(np.uint64)
    bits = np.where(integers < 0, ~bits + np.uint64(1), bits)
    lowest = bits & (~bits + np.uint64(1))
    too_long: Array = bits // np.maximum(lowest, 1) >= np.uint64(2**24)
    return too_long
