"""A permutation of n numbers as arithmetic: any stretch of it, at any size, without keeping it.

Positions are pairs (left, right) in a grid of a x b >= n cells; each round shifts one coordinate by a hash of
the other, which is a permutation of the grid; cells at or past n walk on until they fall below it. The grid
has fewer than a spare cells, so almost none does. A materialised permutation of 10 million takes 0.4 s, and
NumPy's streams are not promised across versions; this is ours and versioned.
"""

from __future__ import annotations

import math

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
    side = math.isqrt(num_items - 1) + 1
    height = -(-num_items // side)
    keys = _round_keys(seed)
    found = _shuffle(positions.astype(np.uint64), side, height, keys)
    while (outside := np.flatnonzero(found >= num_items)).size:
        found[outside] = _shuffle(found[outside], side, height, keys)
    return found.astype(np.int64)


def _shuffle(cells: NDArray[np.uint64], side: int, height: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One pass through all rounds; a permutation of 0..side*height-1."""
    width, tall = np.uint64(side), np.uint64(height)
    left, right = np.divmod(cells, width)
    for at in range(0, ROUNDS, 2):
        left = _shifted(left, mix(right ^ keys[at]), tall)
        right = _shifted(right, mix(left ^ keys[at + 1]), width)
    return left * width + right


def _shifted(values: NDArray[np.uint64], hashes: NDArray[np.uint64], size: np.uint64) -> NDArray[np.uint64]:
    """(values + a shift below `size`) modulo `size`, without a division: the hash scales to the shift."""
    moved = values + (((hashes >> _S32) * size) >> _S32)
    return np.where(moved >= size, moved - size, moved)


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
