"""Draws: the random numbers of one transform; uniform and whole ones are exactly alike on every device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from flatout.augment.host import array, host_kernels
from flatout.augment.keys import FIRST_DRAW, FIRST_NOISE, FIRST_POSITION, SampleKeys, sequence, shift_right

_BITS = 31
"""Random bits of a draw: times a count below 2**31 they still fit int64."""
_FLOAT_BITS = 24
"""Bits that a float32 holds exactly: the uniform numbers are k / 2**24, the same on any device."""
_FLOAT_UNIT = 2.0**-_FLOAT_BITS
_FLOAT_MASK = (1 << _FLOAT_BITS) - 1
_MOST_TOGETHER = 16
"""Draws made for every position of a chain at once; who wants more makes them alone."""


class Draws:
    """`num` draws for each sample, read by column as uniform or whole numbers: (B,), or (B, n) for a slice."""

    def __init__(self, keys: SampleKeys, num: int) -> None:
        self.keys = keys
        drawn = keys.drawn
        if drawn is None or drawn.shape[1] < num:
            drawn = sequence(keys.states, FIRST_DRAW, num, _BITS)
        self._bits = drawn

    def chance(self, column: int, p: float) -> Tensor:
        """True with probability p, to within 2**-31; always for 1, never for 0."""
        return self._bits[:, column] < round(p * (1 << _BITS))

    def uniform(self, column: int | slice, low: float = 0.0, high: float = 1.0) -> Tensor:
        """float32 from low to high. The draw in [0, 1) is bit-equal on every device; scaling it may round."""
        whole = (self._bits[:, column] >> (_BITS - _FLOAT_BITS)).to(torch.float32)
        # The unit is a power of two: multiplied first or last, the result is rounded once.
        scaled = whole * (_FLOAT_UNIT * (high - low))
        return scaled if low == 0.0 else scaled + low

    def whole(self, column: int | slice, count: int | Tensor) -> Tensor:
        """int64 from 0 to count - 1, bit-equal on every device."""
        return (self._bits[:, column] * count) >> _BITS


def position_keys(keys: SampleKeys, num_draws: Sequence[int]) -> list[SampleKeys]:
    """The keys of each position of a chain, `keys.position(at)`, with so many draws made for it.

    All positions are mixed at once: on any device that is a few operations instead of a few for each.
    """
    if not num_draws:
        return []
    num = min(max(num_draws), _MOST_TOGETHER)
    if (kernels := host_kernels(keys.states)) is not None:
        states = keys.states.new_empty(len(num_draws), len(keys.states))
        drawn = keys.states.new_empty(*states.shape, num)
        numbers = (array(each).view(np.uint64) for each in (keys.states, states, drawn))
        firsts = np.uint64(FIRST_POSITION), np.uint64(FIRST_DRAW), np.uint64(_BITS)
        kernels.positions(next(numbers), *firsts, *numbers)
    else:
        states = sequence(keys.states, FIRST_POSITION, len(num_draws)).t()
        drawn = sequence(states.flatten(), FIRST_DRAW, num, _BITS).view(*states.shape, num)
    return [SampleKeys(*own) for own in zip(states.unbind(), drawn.unbind(), strict=True)]


def normals(states: Tensor, num: int) -> Tensor:
    """(B,) states in, (B, num) float32 normal numbers out, up to 5.77 deviations.

    Box and Muller's formula on two 24-bit uniforms of one hash: the uniforms are bit-equal on every device, the
    logarithm, root, sine and cosine agree to a few units in the last place.
    """
    if (kernels := host_kernels(states)) is not None:
        out = torch.empty(len(states), num, dtype=torch.float32, device=states.device)
        kernels.normals(array(states ^ FIRST_NOISE).view(np.uint64), array(out))
        return out
    hashes = sequence(states, FIRST_NOISE, (num + 1) // 2)
    above_zero = (shift_right(hashes, 64 - _FLOAT_BITS) + 1).to(torch.float32) * _FLOAT_UNIT
    turns = ((hashes >> 8) & _FLOAT_MASK).to(torch.float32) * _FLOAT_UNIT
    radius = (-2.0 * above_zero.log()).sqrt()
    angle = turns * (2.0 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :num]
