"""Turn, resample, crop, pad and resize an array on its grid, and keep its affine true. Channels come first.

Every function takes (C, ...) and an affine (or None, where nothing says how the grid lies in the world) and
gives both back. New grids keep the centre of the field of view.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import Any, Literal

import numpy as np

from flatout.errors import ConfigError, SampleError
from flatout.source.resample import Positions, num_between, sample_linear, sample_nearest
from flatout.types import Array, Limits

Fit = Literal["crop_pad", "resize"]
Placed = tuple[Array, Array | None]
"""An array and its affine."""
Float = np.dtype[np.floating[Any]]

_AXIS_OF = {"R": 0, "L": 0, "A": 1, "P": 1, "S": 2, "I": 2}
_POSITIVE = "RAS"
# Spacings closer than this are one: an axis of 512 voxels would move by 0.03 voxels at its ends.
_SAME_SPACING = 1e-4


def check_orientation(code: str) -> str:
    """The code in upper case, such as RAS: where each axis points to, first to last.

    Raises:
        ConfigError: it does not name each of the three directions once.
    """
    upper = code.upper()
    if sorted(_AXIS_OF.get(letter, -1) for letter in upper) != [0, 1, 2]:
        raise ConfigError(
            f"orientation '{code}' is none; take one of R/L, one of A/P and one of S/I in any order, as RAS"
        )
    return upper


def spacing_of(affine: Array) -> Array:
    """Affine -> size of a voxel along each axis, in mm.

    Raises:
        SampleError: the affine maps the grid to a plane or a line.
    """
    spacing: Array = np.sqrt((affine[:3, :3] ** 2).sum(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        volume = abs(np.linalg.det(affine[:3, :3] / spacing))
    # Rounding alone leaves 1e-7; two axes half a degree apart still have 1e-2.
    if not volume > 1e-4:
        raise SampleError(
            "transform", f"the affine has no volume: {affine[:3].tolist()}; set orientation: null"
        )
    return spacing


def reorient(array: Array, affine: Array | None, code: str) -> Placed:
    """Permute and flip X, Y, Z so that they point, as nearly as the grid allows, where `code` says.

    Nothing is interpolated; the result is a view. Without an affine nothing is known and nothing changes.
    """
    if affine is None:
        return array, None
    directions = affine[:3, :3] / spacing_of(affine)
    world_axes = [_AXIS_OF[letter] for letter in code]
    # sources[i] is the array axis that becomes axis i: of the six assignments the one that fits best.
    sources = max(
        permutations(range(3)),
        key=lambda order: sum(abs(directions[w, a]) for w, a in zip(world_axes, order, strict=True)),
    )
    array = array.transpose(0, *(axis + 1 for axis in sources))
    to_old = np.zeros((4, 4))
    to_old[3, 3] = 1.0
    for axis, (source, letter) in enumerate(zip(sources, code, strict=True)):
        is_flipped = (directions[_AXIS_OF[letter], source] < 0) == (letter in _POSITIVE)
        to_old[source, axis] = -1.0 if is_flipped else 1.0
        if is_flipped:
            to_old[source, 3] = array.shape[axis + 1] - 1
            array = np.flip(array, axis + 1)
    return array, affine @ to_old


def respace(
    array: Array, affine: Array, spacing: Sequence[float], limits: Limits, dtype: Float | None = None
) -> Placed:
    """Resample X, Y, Z to exactly `spacing` mm along their axes: linear in `dtype`, else nearest neighbour.

    An axis of n voxels gets max(1, round(n * old / new)); the outermost new voxels may lie half a voxel
    outside of the old centres, where the edge value continues.
    """
    ratios = np.asarray(spacing, dtype=np.float64) / spacing_of(affine)
    ratios[np.abs(ratios - 1.0) < _SAME_SPACING] = 1.0
    with np.errstate(over="ignore", divide="ignore"):
        wanted = np.maximum(np.rint(array.shape[1:] / ratios), 1.0)
    check_points(wanted, array, limits, dtype)
    _check_way(wanted, array, limits, dtype)
    sizes = wanted.astype(np.int64)
    offsets = (np.array(array.shape[1:]) - 1 - (sizes - 1) * ratios) / 2
    return _sample(array, affine, sizes, ratios, offsets, dtype)


def resize(
    array: Array, affine: Array | None, size: Sequence[int], limits: Limits, dtype: Float | None = None
) -> Placed:
    """Stretch the field of view over `size` points an axis: linear in `dtype`, else nearest neighbour."""
    sizes = np.array(size)
    check_points(sizes, array, limits, dtype)
    _check_way(sizes, array, limits, dtype)
    ratios = np.array(array.shape[1:]) / sizes
    return _sample(array, affine, sizes, ratios, (ratios - 1) / 2, dtype)


def crop(array: Array, affine: Array | None, size: Sequence[int]) -> Placed:
    """Cut each axis after the first that is longer than `size` around its centre; a view.

    Of an odd number of points to cut, the one more goes at the end.
    """
    starts = [max(old - new, 0) // 2 for old, new in zip(array.shape[1:], size, strict=True)]
    kept = (slice(start, start + new) for start, new in zip(starts, size, strict=True))
    return array[(slice(None), *kept)], _moved(affine, np.array(starts, dtype=np.float64), 1.0)


def pad(array: Array, affine: Array | None, size: Sequence[int], value: float, limits: Limits) -> Placed:
    """Fill each axis after the first that is shorter than `size` with `value`, around its centre.

    Of an odd number of points to add, the one more goes to the end.
    """
    wanted = tuple(max(old, new) for old, new in zip(array.shape[1:], size, strict=True))
    if wanted == array.shape[1:]:
        return array, affine
    check_points(np.array(wanted, dtype=np.float64), array, limits, array.dtype)
    starts = [(new - old) // 2 for old, new in zip(array.shape[1:], wanted, strict=True)]
    filled = np.full((len(array), *wanted), value, dtype=array.dtype)
    places = (slice(start, start + old) for start, old in zip(starts, array.shape[1:], strict=True))
    filled[(slice(None), *places)] = array
    return filled, _moved(affine, -np.array(starts, dtype=np.float64), 1.0)


def is_same_place(first: Array, second: Array, shape: Sequence[int]) -> bool:
    """Whether no corner of a grid of this shape moves by a tenth of a voxel between two affines."""
    corners = np.array([[x, y, z, 1] for x in (0, 1) for y in (0, 1) for z in (0, 1)], dtype=np.float64)
    corners[:, :3] *= np.array(shape) - 1
    moved = np.abs((corners @ (first - second).T)[:, :3]).max()
    return bool(moved <= 0.1 * np.sqrt((first[:3, :3] ** 2).sum(axis=0)).min())


def _sample(
    array: Array, affine: Array | None, sizes: Array, ratios: Array, offsets: Array, dtype: Float | None
) -> Placed:
    olds = array.shape[1:]
    axes = [
        Positions(old, int(new), float(ratio), float(offset) if (ratio, old) != (1.0, new) else 0.0)
        for old, new, ratio, offset in zip(olds, sizes, ratios, offsets, strict=True)
    ]
    sampled = sample_nearest(array, axes) if dtype is None else sample_linear(array, axes, dtype)
    return sampled, _moved(affine, np.array([axis.offset for axis in axes]), ratios)


def _moved(affine: Array | None, offsets: Array, ratios: Array | float) -> Array | None:
    """The affine of a grid whose point j stands at `offset + ratio * j` of the old one."""
    if affine is None:
        return None
    to_old = np.eye(4)
    to_old[:3, :3] *= ratios
    to_old[:3, 3] = offsets
    return affine @ to_old


def check_points(sizes: Array, array: Array, limits: Limits, dtype: np.dtype[Any] | None) -> None:
    """Refuse new sizes of (C, ...) that take too much memory.

    Raises:
        SampleError: naming what is needed and allowed.
    """
    itemsize, most = (dtype or array.dtype).itemsize, limits.max_sample_bytes
    num_bytes = float(math.prod(sizes.tolist())) * len(array) * itemsize
    if not num_bytes <= most:
        shape = " x ".join(f"{size:.6g}" for size in sizes)
        raise SampleError(
            "transform", f"{shape} points would take {num_bytes:.4g} bytes; max_sample_bytes is {most:,}"
        )


def _check_way(sizes: Array, array: Array, limits: Limits, dtype: np.dtype[Any] | None) -> None:
    """Refuse a small result that has to pass through something large: one axis grows before another shrinks."""
    itemsize, most = (dtype or array.dtype).itemsize, limits.max_sample_bytes
    num_bytes = num_between(array, sizes.tolist(), is_linear=dtype is not None) * itemsize
    if num_bytes > max(most, array.size * itemsize):
        raise SampleError(
            "transform",
            f"resampling {array.shape[1:]} points would take {num_bytes:.4g} bytes on the way; "
            f"max_sample_bytes is {most:,}",
        )
