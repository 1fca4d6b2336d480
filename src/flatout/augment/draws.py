"""Draws: the random numbers of one transform; uniform and whole ones are exactly alike on every device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flatout.augment.keys import FIRST_DRAW, FIRST_NOISE, SampleKeys, sequence, shift_right

_BITS = 31
"""Random bits of a draw: times a count below 2**31 they still fit int64."""
_FLOAT_BITS = 24
"""Bits that a float32 holds exactly: the uniform numbers are k / 2**24, the same on any device."""
_FLOAT_UNIT = 2.0**-_FLOAT_BITS
_FLOAT_MASK = (1 << _FLOAT_BITS) - 1


class Draws:
    """`num` draws for each sample, read by column as uniform or whole numbers: (B,), or (B, n) for a slice."""

    def __init__(self, keys: SampleKeys, num: int) -> None:
        self.keys = keys
        self._bits = shift_right(sequence(keys.states, FIRST_DRAW, num), 64 - _BITS)

    def chance(self, column: int, p: float) -> Tensor:
        """True with probability p, to within 2**-31; always for 1, never for 0."""
        return self._bits[:, column] < round(p * (1 << _BITS))

    def uniform(self, column: int | slice, low: float = 0.0, high: float = 1.0) -> Tensor:
        """float32 from low to high. The draw in [0, 1) is bit-equal on every device; scaling it may round."""
        exact = (self._bits[:, column] >> (_BITS - _FLOAT_BITS)).to(torch.float32) * _FLOAT_UNIT
        return exact if (low, high) == (0.0, 1.0) else exact * (high - low) + low

    def whole(self, column: int | slice, count: int | Tensor) -> Tensor:
        """int64 from 0 to count - 1, bit-equal on every device."""
        return (self._bits[:, column] * count) >> _BITS


def normals(states: Tensor, num: int) -> Tensor:
    """(B,) states in, (B, num) float32 normal numbers out, up to 5.77 deviations.

    Box and Muller's formula on two 24-bit uniforms of one hash: the uniforms are bit-equal on every device, the
    logarithm, root, sine and cosine agree to a few units in the last place.
    """
    hashes = sequence(states, FIRST_NOISE, (num + 1) // 2)
    above_zero = (shift_right(hashes, 64 - _FLOAT_BITS) + 1).to(torch.float32) * _FLOAT_UNIT
    turns = ((hashes >> 8) & _FLOAT_MASK).to(torch.float32) * _FLOAT_UNIT
    radius = (-2.0 * above_zero.log()).sqrt()
    angle = turns * (2.0 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :num]
