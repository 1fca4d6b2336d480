"""What is loaded: four kinds of samples, the same numbers for every contestant, made by arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatout.lazy import cached_property
from flatout.store.checks import crc32c
from flatout.types import Array, FieldSpec

SPREAD = 65536
"""Samples start at different places of one pool of random numbers: each is another, all are made at once."""


@dataclass(frozen=True)
class LoadCase:
    """A data set: every sample `x` has the same shape, or a length of its own, and its number `y`."""

    name: str
    num_samples: int
    shape: tuple[int, ...]
    """Of the longest sample, if lengths differ."""
    dtype: str
    batch_size: int
    shards: dict[str, int]
    """Name of the case in the results -> samples in a shard."""
    min_length: int | None = None
    """Shortest sample along the first axis; None: all are equal."""

    def scaled(self, share: float) -> LoadCase:
        """The same with fewer samples, for a quick look."""
        count = max(self.batch_size, round(self.num_samples * share))
        shards = {name: max(1, round(rows * count / self.num_samples)) for name, rows in self.shards.items()}
        return LoadCase(self.name, count, self.shape, self.dtype, self.batch_size, shards, self.min_length)

    @property
    def is_ragged(self) -> bool:
        return self.min_length is not None

    def fields(self, encoding: Any = "none") -> tuple[FieldSpec, ...]:
        shape = (None, *self.shape[1:]) if self.is_ragged else self.shape
        kind = "sequence" if self.is_ragged else "array"
        return FieldSpec("x", kind, self.dtype, shape, encoding=encoding), FieldSpec("y", "label", "int64", ())

    def sample(self, number: int) -> Array:
        """Sample `number`."""
        length = self.lengths[number]
        start = number * 7919 % SPREAD
        count = length * math.prod(self.shape[1:])
        return self._pool[start : start + count].reshape(length, *self.shape[1:])

    def samples(self) -> Iterator[Array]:
        return (self.sample(number) for number in range(self.num_samples))

    def array(self) -> Array:
        """All samples in one array; only where they are equal in shape."""
        whole = np.empty((self.num_samples, *self.shape), self.dtype)
        for number, sample in enumerate(self.samples()):
            whole[number] = sample
        return whole

    def crcs(self) -> Array:
        """What a delivered sample is compared with."""
        return np.array([crc32c(sample) for sample in self.samples()], np.uint32)

    @cached_property
    def lengths(self) -> Array:
        if self.min_length is None:
            return np.full(self.num_samples, self.shape[0])
        return np.random.default_rng(1).integers(self.min_length, self.shape[0] + 1, self.num_samples)

    @cached_property
    def _pool(self) -> Array:
        numbers = np.random.default_rng(0).random(math.prod(self.shape) + SPREAD, np.float32)
        return (numbers * 255).astype(np.uint8) if self.dtype == "uint8" else numbers.astype(self.dtype)


LOAD_CASES = {
    case.name: case
    for case in (
        LoadCase("signal", 20_000, (4000,), "float32", 64, {"signal": 20_000, "signal_500_shards": 40}),
        LoadCase("image", 4_000, (3, 224, 224), "uint8", 64, {"image": 4_000, "image_500_shards": 8}),
        LoadCase("volume", 200, (1, 96, 160, 160), "float16", 4, {"volume": 4}),
        LoadCase("ragged", 20_000, (2000, 8), "float32", 64, {"ragged": 20_000}, min_length=10),
    )
}
