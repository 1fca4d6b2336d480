"""Parts: one field of several batches at once. What can be looked up ahead is, for many batches together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from flatout.loader.buffers import BufferPool, cut_rows
from flatout.loader.crc import CrcCheck
from flatout.loader.rows import FixedRows
from flatout.types import Array


@dataclass(frozen=True, slots=True)
class Wanted:
    """Samples of coming batches, as positions within the split, and what each part has looked up for them."""

    positions: Array
    found: dict[str, Array]

    def cut(self, start: int, stop: int) -> Wanted:
        """Some of them, which follow each other."""
        found = {name: rows[start:stop] for name, rows in self.found.items()}
        return Wanted(self.positions[start:stop], found)


class Part(Protocol):
    """A field whose samples have one shape. Several threads may call at once."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a sample."""

    def look_up(self, positions: Array) -> Array:
        """One row for each position: whatever `gather` needs to know."""

    def gather(self, positions: Array, found: Array, sizes: Sequence[int]) -> list[torch.Tensor]:
        """The samples at these positions, looked up before, cut into batches of these sizes.

        Raises:
            StoreCorruptError: a sample's bytes do not match their checksum.
            LoaderError: they cannot be read.
        """

    def announce(self, found: Array) -> None:
        """These samples are wanted soon."""


@dataclass(frozen=True)
class GatheredPart:
    """Samples copied into a buffer that is used again."""

    rows: FixedRows
    pool: BufferPool
    check: CrcCheck | None = None

    @property
    def row_bytes(self) -> int:
        return self.pool.row_bytes

    def look_up(self, positions: Array) -> Array:
        return self.rows.look_up(positions)

    def gather(self, positions: Array, found: Array, sizes: Sequence[int]) -> list[torch.Tensor]:
        return self.pool.hand_out(self.gathered(positions, found), sizes)

    def gathered(self, positions: Array, found: Array) -> Array:
        """A buffer that has the samples in its first rows."""
        buffer = self.pool.take(len(found))
        self.rows.gather(found, buffer)
        if self.check is not None:
            self.check.require(positions, buffer)
        return buffer

    def announce(self, found: Array) -> None:
        self.rows.announce(found)


@dataclass(frozen=True)
class LoadedPart:
    """Small samples (labels, scalars, scales, keys), all in memory: looked up, they are found.

    Each batch looks at its own stretch of what was looked up, and that is not used a second time.
    """

    table: Array
    check: CrcCheck | None = None

    @property
    def row_bytes(self) -> int:
        return self.table.itemsize * math.prod(self.table.shape[1:])

    def look_up(self, positions: Array) -> Array:
        return np.take(self.table, positions, axis=0)

    def gather(self, positions: Array, found: Array, sizes: Sequence[int]) -> list[torch.Tensor]:
        if self.check is not None:
            self.check.require(positions, found)
        return cut_rows(found, sizes)

    def announce(self, found: Array) -> None:
        """They are in memory."""
