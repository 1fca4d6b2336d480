"""Where a sample that is too long is cut: arithmetic over seed, epoch and the sample's key."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flatout.loader.permutation import mix
from flatout.seeding import child_seed
from flatout.types import Array

Crop = Literal["head", "tail", "random"]

_HALF = np.uint64(32)


def crop_seed(seed: int, epoch: int) -> int:
    """What the random crops of an epoch are drawn from."""
    return child_seed(seed, "crop", epoch=epoch)


def crop_starts(crop: Crop, keys: NDArray[np.uint64], spare: Array, seed: int) -> Array:
    """The first step kept of each sample.

    A random start follows from the epoch's seed and the key alone, so that batch size, order, ranks and resume
    points cannot change it. Fields of one sample that are equally long are cut alike.

    Args:
        keys: hashes of the samples' keys.
        spare: steps of each sample that cannot be kept, at least 0 and below 2**32 - 1.
        seed: of the epoch, see `crop_seed`.
    """
    if crop == "head":
        return np.zeros_like(spare)
    if crop == "tail":
        return spare
    draws = mix(keys ^ np.uint64(seed)) >> _HALF
    return ((draws * (spare.astype(np.uint64) + np.uint64(1))) >> _HALF).astype(np.int64)
