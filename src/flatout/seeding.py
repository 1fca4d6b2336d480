"""One seed in, independent 64-bit child seeds out: a pure function of purpose, epoch, rank and worker.

No child is drawn from another, so a run resumed in epoch 7 has the seeds it would have had without the break.
A child is the first 8 bytes (little endian) of BLAKE3 over the UTF-8 purpose, a zero byte, and seed, epoch,
rank and worker as 8 bytes each (little endian, modulo 2**64). Test vectors, for ports to other languages:

    child_seed(0, "order")                                 15033423080513087979
    child_seed(7, "order", epoch=3)                         7828632220986144275
    child_seed(7, "augment", epoch=3, rank=1, worker=2)    12230317884222972416
"""

from __future__ import annotations

import struct

from blake3 import blake3

MASK_64 = (1 << 64) - 1

_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: the step of splitmix64, odd, so that no state repeats within 2**64."""


def child_seed(seed: int, purpose: str, *, epoch: int = 0, rank: int = 0, worker: int = 0) -> int:
    """A run's seed and what the child is for in, an unsigned 64-bit seed out; ints count modulo 2**64."""
    numbers = struct.pack("<4Q", *(number & MASK_64 for number in (seed, epoch, rank, worker)))
    return int.from_bytes(blake3(purpose.encode() + b"\0" + numbers).digest(8), "little")


def splitmix64(state: int) -> int:
    """One draw of splitmix64 from an unsigned 64-bit state: the mix that devices repeat on whole batches.

    The next draw is `splitmix64(state + 0x9E3779B97F4A7C15)`. splitmix64(1234567) is 6457827717110365317.
    """
    mixed = (state + _GOLDEN) & MASK_64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK_64
    return mixed ^ (mixed >> 31)
