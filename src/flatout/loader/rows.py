"""FixedRows: how the rows of a field of one shape are read, whatever they are read from."""

from __future__ import annotations

from typing import Protocol

from flatout.types import Array


class FixedRows(Protocol):
    """A field of one shape of a split. Several threads may call at once."""

    def look_up(self, positions: Array) -> Array:
        """One number for each position of the split: what `gather` and `announce` need to know."""
        return positions

    def gather(self, found: Array, out: Array) -> None:
        """Copy the rows that were looked up into the first rows of `out`."""

    def announce(self, found: Array) -> None:
        """Tell the system that these rows are wanted soon, where that helps."""
        return
