"""Ragged fields: samples of different lengths copied into one padded buffer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flatout.loader.buffers import FreeBuffers, pinned_array, pinned_tensor
from flatout.loader.crc import CrcCheck
from flatout.loader.crop import crop_starts
from flatout.loader.fixed import load_table
from flatout.loader.lengths import RaggedRule, length_axis
from flatout.loader.places import Places
from flatout.loader.values import Values
from flatout.store import StoreReader, layout
from flatout.store.encode import restore
from flatout.types import Array, FieldSpec

BLOCK = 1 << 16
"""Samples whose shapes are looked at together."""


class RaggedRows:
    """One ragged field of a split."""

    def __init__(
        self,
        store: StoreReader,
        spec: FieldSpec,
        places: Places,
        rule: RaggedRule,
        check: CrcCheck | None,
        values: Values,
        is_pinned: bool = False,
    ) -> None:
        self._check = check
        self._spec = spec
        self._rule = rule
        self._values = values
        is_quantised = layout.is_quantised(spec)
        make_pool = PinnedFlatPool if is_pinned else FlatPool
        self._pool = make_pool(np.dtype(spec.dtype) if is_quantised else spec.stored_dtype)
        self._axis = length_axis(spec)
        self._shapes = _Shapes(store, spec, places)
        self._scales = _table(store, layout.scale_path(spec.name), places) if is_quantised else None
        is_random = rule.crop == "random" and rule.max_length is not None
        self._keys = _table(store, layout.KEY_HASH, places) if is_random else np.empty(0, np.uint64)

    @property
    def mean_bytes(self) -> int:
        return int(self._shapes.mean_items * self._spec.stored_dtype.itemsize)

    def announce(self, positions: Array) -> None:
        """Tell the system that these samples are wanted soon."""
        self._values.announce(positions)

    def gather(self, positions: Array, crop_seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, longest, ...) with zeros behind shorter samples, and their lengths.

        Args:
            crop_seed: what random crops of this epoch are drawn from.
        """
        samples = self._values.whole(positions)
        if self._check is not None:
            self._check.require(positions, samples)
        if self._scales is not None:
            # Restored here: padding is 0 in the restored values, not in the codes.
            scales = self._scales[positions].tolist()
            samples = [restore(self._spec, *pair) for pair in zip(samples, scales, strict=True)]
        shapes = self._shapes.of(positions)
        kept, starts = self._cut(positions, shapes, crop_seed)
        return self._padded(samples, shapes, kept, starts), torch.from_numpy(kept[:, self._axis].copy())

    def _cut(self, positions: Array, shapes: Array, crop_seed: int) -> tuple[Array, Array]:
        """The shapes that are kept, and the first step kept of each sample."""
        lengths = shapes[:, self._axis]
        kept = self._rule.kept(lengths)
        if self._rule.max_length is None or not (spare := lengths - kept).any():
            return shapes, np.zeros(len(shapes), np.int64)
        keys = self._keys[positions] if len(self._keys) else self._keys
        shapes = shapes.copy()
        shapes[:, self._axis] = kept
        return shapes, crop_starts(self._rule.crop, keys, spare, crop_seed)

    def _padded(self, samples: list[Array], shapes: Array, kept: Array, starts: Array) -> torch.Tensor:
        """Samples of these shapes, cut to the shapes kept, in one buffer of the shape that holds them all."""
        row = kept.max(axis=0, initial=0)
        row[self._axis] = self._rule.padded(row[self._axis])
        shape = tuple(row.tolist())
        num_items = len(samples) * math.prod(shape)
        buffer = self._pool.take(num_items)
        padded = buffer[:num_items].reshape(len(samples), *shape)
        if self._is_one_stretch:
            inner = math.prod(shape[self._axis + 1 :])
            _fill_stretches(buffer, math.prod(shape), samples, starts * inner, kept.prod(axis=1))
        else:
            _fill_blocks(padded, samples, shapes, kept, starts, self._axis)
        return self._pool.hand_out(buffer, padded)

    @property
    def _is_one_stretch(self) -> bool:
        """Whether what is kept of a sample, and the padding behind it, are one stretch of memory each."""
        before, behind = self._spec.shape[: self._axis], self._spec.shape[self._axis + 1 :]
        return None not in behind and math.prod(n or 0 for n in before) == 1


def _fill_stretches(buffer: Array, width: int, samples: Sequence[Array], starts: Array, sizes: Array) -> None:
    """Copy `size` elements of each sample to the head of its row of `width`, and zero the rest of the row.

    64 sequences of 10-2000 x 8 float32, all in the CPU's cache: 145 of the 178 us that a whole batch takes.
    memcpy and memset by address take as long, np.concatenate into the buffer too. A compiled loop saves a fifth
    of the CPU time, and costs seconds at the start.
    """
    at = 0
    for sample, start, size in zip(samples, starts.tolist(), sizes.tolist(), strict=True):
        buffer[at : at + size] = sample if len(sample) == size else sample[start : start + size]
        buffer[at + size : at + width] = 0
        at += width


def _fill_blocks(
    padded: Array, samples: Sequence[Array], shapes: Array, kept: Array, starts: Array, axis: int
) -> None:
    """The same where samples are blocks: several axes vary, or channels stand before the one that does."""
    every = zip(padded, samples, shapes.tolist(), kept.tolist(), starts.tolist(), strict=True)
    for row, sample, shape, size, start in every:
        index = [slice(None)] * len(shape)
        index[axis] = slice(start, start + size[axis])
        row[...] = 0
        row[tuple(slice(0, n) for n in size)] = sample.reshape(shape)[tuple(index)]


class _Shapes:
    """The shape of every sample of the split, from the shards' own tables."""

    def __init__(self, store: StoreReader, spec: FieldSpec, places: Places) -> None:
        self._row = np.array([n or 0 for n in spec.shape], np.int64)
        self._axes: int | slice = slice(None)
        if layout.has_shapes(spec):
            self._sizes = _table(store, layout.shapes_path(spec.name), places)
        else:
            counts = load_table(
                [store.shard(number).lengths(spec.name) for number in store.announced()], places
            )
            others = math.prod(n for n in spec.shape if n is not None)
            self._axes, self._sizes = length_axis(spec), counts // others

    @property
    def mean_items(self) -> float:
        """Mean number of elements of a sample, over at most BLOCK of them."""
        num_samples = len(self._sizes)
        looked_at = np.linspace(0, num_samples - 1, min(num_samples, BLOCK)).astype(np.int64)
        return float(self.of(looked_at).prod(axis=1).mean()) if num_samples else 0.0

    def of(self, positions: Array) -> Array:
        """(samples, axes) of these samples."""
        shapes = np.empty((len(positions), len(self._row)), np.int64)
        shapes[:] = self._row
        shapes[:, self._axes] = self._sizes[positions]
        return shapes


def _table(store: StoreReader, path: str, places: Places) -> Array:
    return load_table([store.shard(number).tables[path] for number in store.announced()], places)


class FlatPool:
    """Flat buffers of growing size that are used again when nobody looks at them."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._free = FreeBuffers()

    def take(self, num_items: int) -> Array:
        buffer = self._free.take()
        if buffer is not None and buffer.size >= num_items:
            return buffer
        return np.empty(num_items + num_items // 4, self._dtype)

    def hand_out(self, buffer: Array, view: Array) -> torch.Tensor:
        return self._free.lend(buffer, view)


class PinnedFlatPool(FlatPool):
    """The same in page-locked memory, for copies to CUDA; torch recycles it, see `PinnedPool`."""

    def take(self, num_items: int) -> Array:
        return pinned_array((num_items,), self._dtype)

    def hand_out(self, buffer: Array, view: Array) -> torch.Tensor:
        return pinned_tensor(buffer)[: view.size].view(view.shape)
