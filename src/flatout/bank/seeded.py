"""Seeded: code that draws from the global random streams draws the same each time, and leaves no trace."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from flatout.seeding import MASK_64


@contextmanager
def seeded(seed: int) -> Iterator[np.random.Generator]:
    """Python's, NumPy's and torch's global streams set by `seed` for a while; a generator of its own comes out.

    Transforms written for a DataLoader's workers draw from these streams. 40 us a call.
    """
    seed &= MASK_64
    before = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    try:
        random.seed(seed)
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
        torch.default_generator.manual_seed(seed)  # only the CPU's: views are made there
        yield np.random.default_rng(seed)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.random.set_rng_state(before[2])
