"""A permutation of n numbers as arithmetic: any stretch of it, at any size, without keeping it.

Positions are pairs (left, right) in a grid of a x b >= n cells; each round shifts one coordinate by a hash of
the other, which is a permutation of the grid; cells at or past n walk on until they fall below it. The grid
has fewer than a spare cells, so almost none does. A materialised permutation of 10 million takes 0.4 s, and
NumPy's streams are not promised across versions; this is ours and versioned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

VERSION = 1
"""Raised when the same seed would give another order; a loader's state names it."""
ROUNDS = 8

_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32 = (np.uint64(bits) for bits in (27, 30, 31, 32))


def permute(positions: NDArray[np.int64], num_items: int, seed: int) -> NDArray[np.int64]:
    """Where each position of 0..num_items-1 goes; distinct positions give distinct results.

    Example:
        >>> sorted(permute(np.arange(5), 5, seed=7).tolist())
        [0, 1, 2, 3, 4]
    """
    if num_items < 2:
        return positions.copy()
    return _shuffle(positions, _grid(num_items, seed))


@dataclass(frozen=True)
class _Grid:
    """The rounds of one permutation. A shift depends on one coordinate alone, so all of them are in tables."""

    num_items: int
    by_right: NDArray[np.int64]
    """(pairs of rounds, side): how far `left` moves by `right`, in the first round of each pair."""
    by_left: NDArray[np.int64]
    """(pairs of rounds, height): how far `right` then moves by `left`."""

    def shuffled(self, cells: NDArray[np.int64]) -> NDArray[np.int64]:
        """One pass through all rounds; a permutation of 0..side*height-1. 0.02 us a cell."""
        side, height = self.by_right.shape[1], self.by_left.shape[1]
        left: NDArray[np.int64] = cells // side
        right: NDArray[np.int64] = cells - left * side
        for turn in range(ROUNDS // 2):
            left = _moved(left, self.by_right[turn][right], height)
            right = _moved(right, self.by_left[turn][left], side)
        left *= side
        left += right
        return left


def _shuffle_by_numpy(cells: NDArray[np.int64], grid: _Grid) -> NDArray[np.int64]:
    found = grid.shuffled(cells)
    while (outside := np.flatnonzero(found >= grid.num_items)).size:
        found[outside] = grid.shuffled(found[outside])
    return found


_shuffle = _shuffle_by_numpy


def compile_shuffle() -> None:
    """From here on by compiled code, in a third of the time: for those who have loaded Numba anyway."""
    global _shuffle
    from flatout.loader.look_kernels import shuffle

    def shuffle_by_kernel(cells: NDArray[np.int64], grid: _Grid) -> NDArray[np.int64]:
        found = np.empty_like(cells)
        tables = grid.by_right.view(np.uint64), grid.by_left.view(np.uint64)
        shuffle(cells.view(np.uint64), grid.num_items, *tables, found.view(np.uint64))
        return found

    shuffle_by_kernel(np.zeros(1, np.int64), _grid(2, 0))
    _shuffle = shuffle_by_kernel


@lru_cache(16)
def _grid(num_items: int, seed: int) -> _Grid:
    side = math.isqrt(num_items - 1) + 1
    height = -(-num_items // side)
    keys = _round_keys(seed)
    by_right = np.stack([_shifts(side, key, height) for key in keys[::2]])
    by_left = np.stack([_shifts(height, key, side) for key in keys[1::2]])
    return _Grid(num_items, by_right, by_left)


def _shifts(count: int, key: np.uint64, size: int) -> NDArray[np.int64]:
    """A shift below `size` for each of `count` coordinates: their hashes, scaled."""
    hashes = mix(np.arange(count, dtype=np.uint64) ^ key)
    return (((hashes >> _S32) * np.uint64(size)) >> _S32).astype(np.int64)


def _moved(values: NDArray[np.int64], shifts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """(values + shifts) modulo `size`; both are below it. `shifts` is overwritten."""
    shifts += values
    wrapped = (shifts - size).view(np.uint64)  # a difference below 0 is the larger one
    return np.minimum(shifts.view(np.uint64), wrapped).view(np.int64)


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser: 64 bits in, 64 well-mixed bits out."""
    values = (values ^ (values >> _S30)) * _MULTIPLY_1
    values = (values ^ (values >> _S27)) * _MULTIPLY_2
    return values ^ (values >> _S31)


def _round_keys(seed: int) -> NDArray[np.uint64]:
    steps = (np.arange(1, ROUNDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) + np.uint64(
        seed & 0xFFFFFFFFFFFFFFFF
    )
    return mix(steps)
