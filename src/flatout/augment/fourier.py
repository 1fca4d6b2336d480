"""The plan of a real Fourier transform: everything that depends on the length alone, made once.

A row of an even length is taken for half as many complex numbers. Their transform is a series of passes, each
of which joins 2, 3, 4 or 5 transforms to one of as many times the length.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from flatout.types import Array

MIN_LENGTH = 8
"""A row fills a vector at least."""
MAX_LENGTH = 8000
"""Of longer rows, eight at a time leave the CPU's second cache. Against SciPy, 64 rows on two cores: 250 values
2.3x, 1000 1.8x, 4000 2.3x, 4096 1.0x (powers of two meet in the same lines of it), 6000 2.8x, 16000 0.8x."""
_RADICES = (4, 2, 3, 5)


class Plan(NamedTuple):
    """What `band_kernels` are given for rows of one length."""

    radices: Array
    """int64: how many transforms each pass joins."""
    places: Array
    """int64: where the first pass expects each complex number."""
    twiddles: Array
    """float32 pairs: the factors of all passes, one behind the other."""
    turns: Array
    """float32 pairs: the factors between the complex numbers' spectrum and that of the row."""


@lru_cache(maxsize=32)
def plan_transform(length: int) -> Plan | None:
    """The plan for rows of this length; None for odd, short and very long ones, and other prime factors."""
    num = length // 2
    if length % 2 or not MIN_LENGTH <= length <= MAX_LENGTH:
        return None
    radices, rest = [], num
    for radix in _RADICES:
        while rest % radix == 0:
            radices.append(radix)
            rest //= radix
    if rest > 1:
        return None
    factors, stride = [np.empty(0, np.float32)], 1
    for radix in radices:
        factors.append(_pairs(np.outer(np.arange(stride), np.arange(1, radix)) / (stride * radix)))
        stride *= radix
    turns = _pairs(np.arange(num // 2 + 1) / length)
    return Plan(np.array(radices, np.int64), _places(num, radices), np.concatenate(factors), turns)


def _places(num: int, radices: list[int]) -> Array:
    """The digits of each number, in a system whose bases are the radices, in reverse."""
    places, rest, size = np.zeros(num, np.int64), np.arange(num), num
    for radix in reversed(radices):
        size //= radix
        places += rest % radix * size
        rest = rest // radix
    return places


def _pairs(turn: Array) -> Array:
    """exp(-2 pi i turn) as cosine and sine."""
    angle = -2.0 * np.pi * turn.reshape(-1)
    return np.stack([np.cos(angle), np.sin(angle)], -1).reshape(-1).astype(np.float32)
