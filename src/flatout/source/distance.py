"""Distance maps: how far every pixel or voxel of a mask is from the boundary of its foreground."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatout.types import Array


def distance_map(
    mask: Array, spacing: Sequence[float] | None = None, signed: bool = False, clip: float | None = None
) -> Array:
    """A mask of any shape -> float32 of its shape; foreground is everything that is not 0.

    Outside, the distance to the nearest foreground point; inside, that to the nearest background point,
    negative if `signed`. In points, or in mm with the `spacing` of each axis. No value is above `clip`.

    A mask without foreground (or without background) has no boundary: all its points are then as far away
    as the mask's diagonal is long, or `clip` if that is less.
    """
    from scipy.ndimage import distance_transform_edt

    foreground = mask != 0
    sampling = np.ones(mask.ndim) if spacing is None else np.asarray(spacing, dtype=np.float64)
    if foreground.all() or not foreground.any():
        diagonal = float(np.sqrt(np.sum((np.array(mask.shape) * sampling) ** 2)))
        distance = np.full(mask.shape, diagonal, dtype=np.float32)
    else:
        outside = distance_transform_edt(~foreground, sampling=sampling)
        inside = distance_transform_edt(foreground, sampling=sampling)
        distance = (outside + inside).astype(np.float32)
    if clip is not None:
        np.minimum(distance, np.float32(clip), out=distance)
    if signed:
        np.negative(distance, out=distance, where=foreground)
    return distance
