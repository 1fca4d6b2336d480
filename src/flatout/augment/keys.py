"""Sample keys: a 64-bit state for each sample that decides everything drawn for it, whatever batch it is in.

A state is a pure function of (seed, epoch, sample key); views and the positions of a chain split it further.
Number n that belongs to a state is mix(state ^ n), where mix(x) is number x of the splitmix64 sequence that
starts at 0, here on int64: two's complement wraps alike on every device, so the bits are equal on all of them.
Draws, noise, positions and views take their n from ranges of their own, so none repeats another.

Overflow is undefined in the C++ that `torch.compile` writes for the CPU: a compiler that knows the range of a
number and sees its product overflow may put anything in its place, and did. So only states are multiplied, of
which it knows nothing, and n enters by xor.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from flatout.augment.host import array, host_kernels
from flatout.errors import AugmentError
from flatout.seeding import MASK_64, child_seed

FIRST_DRAW = 1 << 33
"""First of the numbers that parameters are made of; then come those of noise, positions and views."""
FIRST_NOISE = 1 << 34
FIRST_POSITION = 1 << 40
FIRST_VIEW = 1 << 41

_RANDOM_KEYS = 1 << 62
"""States drawn from a generator lie below this; more would not fit the int64 range of `torch.randint`."""


def _signed(number: int) -> int:
    """The 64 low bits of a number as int64 holds them."""
    low = number & MASK_64
    return low - (1 << 64) if low >> 63 else low


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MULTIPLY_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = _signed(0x94D049BB133111EB)


class SampleKeys(NamedTuple):
    """The states of a batch, made by `draw_keys`. A type of its own: raw keys would repeat in every epoch."""

    states: Tensor
    """(B,) int64."""
    drawn: Tensor | None = None
    """(B, n) int64, 31 bits: the first draws of each state where they have been made already, with others."""

    def view(self, number: int) -> SampleKeys:
        """The keys of one view of every sample."""
        return SampleKeys(mix(self.states ^ (FIRST_VIEW + number)))

    def position(self, number: int) -> SampleKeys:
        """The keys of one transform of a chain."""
        return SampleKeys(mix(self.states ^ (FIRST_POSITION + number)))


def draw_keys(hashes: Tensor, *, seed: int, epoch: int) -> SampleKeys:
    """A loader's `batch["key"]`, (B,) int64, in; the keys of this seed and epoch out, on the same device.

    Call it outside a compiled function: seed and epoch enter that as a tensor, and nothing is compiled anew.

    Raises:
        AugmentError: `hashes` is not a vector of int64.
    """
    if hashes.dim() != 1 or hashes.dtype != torch.int64:
        raise AugmentError(
            f"sample keys: got {tuple(hashes.shape)} {hashes.dtype}, wanted (B,) torch.int64; "
            "a loader's batch holds them as batch['key']"
        )
    stream = child_seed(seed, "augment", epoch=epoch) & MASK_64
    if (kernels := host_kernels(hashes)) is not None:
        states = torch.empty(len(hashes), dtype=torch.int64, device=hashes.device)
        kernels.start(array(hashes).view(np.uint64), np.uint64(stream), array(states).view(np.uint64))
        return SampleKeys(states)
    return SampleKeys(mix(mix(hashes) ^ _signed(stream)))


def random_keys(num_samples: int, device: torch.device, generator: torch.Generator | None = None) -> SampleKeys:
    """Keys from a generator of `device` (absent: its default one, which `torch.manual_seed` sets)."""
    return SampleKeys(torch.randint(0, _RANDOM_KEYS, (num_samples,), device=device, generator=generator))


def sequence(states: Tensor, first: int, num: int, num_bits: int = 64) -> Tensor:
    """(B,) states in, the highest bits of numbers first .. first + num - 1 of each out: (B, num) int64.

    `first` is a multiple of 2**32 and `num` at most that.
    """
    if (kernels := host_kernels(states)) is not None:
        out = torch.empty(len(states), num, dtype=torch.int64, device=states.device)
        bits = np.uint64(first), np.uint64(num_bits)
        kernels.sequence(array(states).view(np.uint64), *bits, array(out).view(np.uint64))
        return out
    numbers = mix((states ^ first)[:, None] ^ torch.arange(num, device=states.device))
    return numbers if num_bits == 64 else shift_right(numbers, 64 - num_bits)


def mix(numbers: Tensor) -> Tensor:
    """int64 in, 64 well-mixed bits of the same shape out: `seeding.splitmix64((x - 1) * golden)` of each x."""
    if (kernels := host_kernels(numbers)) is not None:
        out = torch.empty(numbers.shape, dtype=torch.int64, device=numbers.device)
        kernels.mix(array(numbers).reshape(-1).view(np.uint64), array(out).reshape(-1).view(np.uint64))
        return out
    mixed = numbers * _GOLDEN
    mixed = (mixed ^ shift_right(mixed, 30)) * _MULTIPLY_1
    mixed = (mixed ^ shift_right(mixed, 27)) * _MULTIPLY_2
    return mixed ^ shift_right(mixed, 31)


def shift_right(numbers: Tensor, num_bits: int) -> Tensor:
    """A logical shift: `>>` of a negative int64 would bring in ones."""
    return (numbers >> num_bits) & ((1 << (64 - num_bits)) - 1)
