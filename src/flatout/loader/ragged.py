"""Ragged and compressed fields: samples of different lengths copied into one padded buffer."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import torch

from flatout.loader.crc import CrcCheck
from flatout.loader.places import Places
from flatout.store import StoreReader, layout
from flatout.store.encode import restore
from flatout.types import Array, FieldSpec


@dataclass(frozen=True)
class RaggedRule:
    """How ragged samples become rectangular."""

    max_length: int | None = None
    """Longest kept; the rest is cut."""
    crop: str = "head"
    """Which part is kept: head or tail."""
    multiple: int = 1
    """Padded lengths are multiples of this."""
    to_max: bool = False
    """Pad every batch to `max_length` instead of to its longest sample."""


class RaggedRows:
    """One ragged (or compressed) field of a split."""

    def __init__(
        self, store: StoreReader, spec: FieldSpec, places: Places, rule: RaggedRule, check: CrcCheck | None
    ) -> None:
        self._check = check
        self._store = store
        self._spec = spec
        self._places = places
        self._rule = rule
        self._is_quantised = layout.is_quantised(spec)
        self._pool = FlatPool(np.dtype(spec.dtype) if self._is_quantised else spec.stored_dtype)
        self._axis = spec.shape.index(None) if spec.is_ragged else -1

    @property
    def mean_bytes(self) -> int:
        if self._axis < 0:
            return math.prod(n or 0 for n in self._spec.shape) * self._spec.stored_dtype.itemsize
        counts = self._store.numbers[f"length_{self._spec.name}"]
        return int(counts.mean() * self._spec.stored_dtype.itemsize) if len(counts) else 0

    def gather(self, positions: Array) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(B, longest, ...) with zeros behind shorter samples, and their lengths (None: all are equal)."""
        samples = self._samples(positions)
        if self._check is not None:
            self._check.require(positions, samples)
        if self._is_quantised:
            # Restored here: padding is 0 in the restored values, not in the codes.
            samples = [self._restored(at, sample) for at, sample in zip(positions, samples, strict=True)]
        if self._axis < 0:
            return self._stacked(samples), None
        samples = [self._cut(sample) for sample in samples]
        shape = self._padded_shape(samples)
        buffer = self._pool.take(len(samples) * math.prod(shape))
        padded = buffer[: len(samples) * math.prod(shape)].reshape(len(samples), *shape)
        for row, sample in zip(padded, samples, strict=True):
            _put(row, sample)
        lengths = np.array([sample.shape[self._axis] for sample in samples], np.int64)
        return self._pool.hand_out(buffer, padded), torch.from_numpy(lengths)

    def _samples(self, positions: Array) -> list[Array]:
        shards, rows = self._places.shards[positions].tolist(), self._places.rows[positions].tolist()
        return [self._store.shard(s).stored(self._spec.name, r) for s, r in zip(shards, rows, strict=True)]

    def _restored(self, position: int, stored: Array) -> Array:
        shard, row = int(self._places.shards[position]), int(self._places.rows[position])
        scale, offset = self._store.shard(shard).tables[layout.scale_path(self._spec.name)][row].tolist()
        return restore(self._spec, stored, (scale, offset))

    def _stacked(self, samples: list[Array]) -> torch.Tensor:
        shape = samples[0].shape
        buffer = self._pool.take(len(samples) * math.prod(shape))
        out = buffer[: len(samples) * math.prod(shape)].reshape(len(samples), *shape)
        for row, sample in zip(out, samples, strict=True):
            row[...] = sample
        return self._pool.hand_out(buffer, out)

    def _cut(self, sample: Array) -> Array:
        most, length = self._rule.max_length, sample.shape[self._axis]
        if most is None or length <= most:
            return sample
        start = {"head": 0, "tail": length - most}.get(self._rule.crop, 0)
        index = [slice(None)] * sample.ndim
        index[self._axis] = slice(start, start + most)
        return sample[tuple(index)]

    def _padded_shape(self, samples: list[Array]) -> tuple[int, ...]:
        """Longest of the batch along every axis that varies, rounded up to the multiple."""
        shape = [max(sizes) for sizes in zip(*(sample.shape for sample in samples), strict=True)]
        longest = shape[self._axis]
        if self._rule.to_max and self._rule.max_length is not None:
            longest = self._rule.max_length
        shape[self._axis] = -(-longest // self._rule.multiple) * self._rule.multiple
        return tuple(shape)


def ragged_lengths(store: StoreReader, spec: FieldSpec, positions: Array) -> Array:
    """Length of each sample along the axis that varies, from the index alone."""
    others = math.prod(n for n in spec.shape if n is not None)
    counts: Array = store.numbers[f"length_{spec.name}"][positions]
    return counts // max(others, 1)


class FlatPool:
    """Flat buffers of growing size that are used again when nobody looks at them."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._free: SimpleQueue[Array] = SimpleQueue()

    def take(self, num_items: int) -> Array:
        try:
            buffer = self._free.get_nowait()
            if buffer.size >= num_items:
                return buffer
        except Empty:
            pass
        return np.empty(num_items + num_items // 4, self._dtype)

    def hand_out(self, buffer: Array, view: Array) -> torch.Tensor:
        weakref.finalize(view, self._free.put, buffer).atexit = False
        return torch.from_numpy(view)


def _put(row: Array, sample: Array) -> None:
    """Copy a sample into the head of a row and zero the rest."""
    if sample.shape == row.shape:
        row[...] = sample
        return
    inside = tuple(slice(0, n) for n in sample.shape)
    if sample.shape[1:] == row.shape[1:]:  # only the first axis is short: the common case
        row[inside[0]] = sample
        row[len(sample) :] = 0
        return
    row[...] = 0
    row[inside] = sample
