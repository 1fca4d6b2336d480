"""RestoredPart: an encoded field as numbers again, restored where it is gathered, for batches that stay there.

For another device fields travel as they are stored and are restored behind the transfer. On the CPU that took
three fresh tensors of the batch and the consumer's time: 135 volumes of 2.4 million uint8 codes a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from flatout.loader.buffers import BufferPool
from flatout.loader.fixed import is_small
from flatout.loader.parts import GatheredPart
from flatout.store.encode import from_bfloat16_bits
from flatout.types import Array, FieldSpec

CHUNK = 1 << 14
"""Elements restored at a time: what is computed on the way stays in the core's own cache."""


def can_restore(spec: FieldSpec) -> bool:
    """Whether a field is encoded, and gathered in a way that lets it be restored there."""
    return spec.encoding != "none" and not spec.is_ragged and not is_small(spec)


@dataclass(frozen=True)
class RestoredPart:
    """Samples gathered as they are stored, then restored into a buffer that is handed out."""

    spec: FieldSpec
    stored: GatheredPart
    pool: BufferPool
    scales: Array | None
    """Scale and offset of every sample of the split, if the field is quantised."""

    @property
    def row_bytes(self) -> int:
        return self.pool.row_bytes

    def look_up(self, positions: Array) -> Array:
        return self.stored.look_up(positions)

    def gather(self, positions: Array, found: Array, sizes: Sequence[int]) -> list[torch.Tensor]:
        codes = self.stored.gathered(positions, found)
        values = self.pool.take(len(found))
        scales = None if self.scales is None else self.scales[positions]
        self._restore(codes[: len(found)], scales, values[: len(found)])
        self.stored.pool.give_back(codes)
        return self.pool.hand_out(values, sizes)

    def announce(self, found: Array) -> None:
        self.stored.announce(found)

    def _restore(self, codes: Array, scales: Array | None, values: Array) -> None:
        """The same arithmetic as `flatout.store.encode.restore`, so that every path gives the same bits."""
        codes, values = codes.reshape(len(codes), -1), values.reshape(len(values), -1)
        for rows, columns in _blocks(*codes.shape):
            if scales is not None:
                work = np.multiply(codes[rows, columns], scales[rows, :1], dtype=np.float32)
                work += scales[rows, 1:]
                _copy(work, values[rows, columns])
            elif self.spec.encoding == "bfloat16":
                values[rows, columns] = from_bfloat16_bits(codes[rows, columns])
            else:
                values[rows, columns] = codes[rows, columns]


def _copy(work: Array, out: Array) -> None:
    """float32 into whatever the field's numbers are."""
    if out.dtype == np.float16:  # NumPy rounds one number at a time, 2.5 ns each; torch eight, to the same bits
        torch.from_numpy(out).copy_(torch.from_numpy(work))
    else:
        out[...] = work


def _blocks(num_rows: int, num_columns: int) -> Iterator[tuple[slice, slice]]:
    """Blocks of about CHUNK elements: several rows, or a part of one."""
    if num_columns <= CHUNK:
        step = CHUNK // max(num_columns, 1)
        yield from ((slice(at, at + step), slice(None)) for at in range(0, num_rows, step))
        return
    for row in range(num_rows):
        yield from ((slice(row, row + 1), slice(at, at + CHUNK)) for at in range(0, num_columns, CHUNK))
