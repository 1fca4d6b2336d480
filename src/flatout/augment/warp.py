"""Warp: where each place of the output lies in the input; any number of steps become one resampling.

Places are counted in values along each axis, 0 at the centre of the first. A place p of the output is first
moved by the displacement, then led through the matrix: x[matrix @ (p + moved, 1)].
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from flatout.augment.host import array, host_kernels
from flatout.augment.memory import new_batch
from flatout.augment.precision import narrowed, widened
from flatout.augment.threads import run_rows
from flatout.errors import AugmentError

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}

_MOST_VALUES = 2**31 - 1
"""Of a channel: the kernel between neighbours counts them in 32 bits, and takes two of a line at once."""


class Warp(NamedTuple):
    """What one or more transforms of space do to a batch."""

    active: Tensor
    """(B,) bool: samples that have to be interpolated; the others land on whole places."""
    matrix: Tensor
    """(B, n, n + 1) float32: a place of the output in, one of the input out."""
    size: tuple[int, ...]
    """Of the output."""
    moved: Tensor | None = None
    """(B, n, *size) float32: displacement of the output's places."""
    is_exact: bool = False
    """Whether every place is whole for every sample: flips, turns, crops."""
    stays: bool = False
    """Whether samples that are not active stay where they are."""


def still(active: Tensor, size: tuple[int, ...]) -> Warp:
    """The warp that leaves everything where it is, for as many samples as `active` has."""
    identity = torch.eye(len(size), len(size) + 1, device=active.device)
    return Warp(torch.zeros_like(active), identity.repeat(len(active), 1, 1), size, is_exact=True)


def followed_by(first: Warp, second: Warp) -> Warp:
    """One warp that does what `first` and then `second` do; `first` must have no displacement."""
    linear, offset = first.matrix[..., :-1], first.matrix[..., -1:]
    both = product(linear, second.matrix)
    matrix = torch.cat([both[..., :-1], both[..., -1:] + offset], dim=2)
    is_exact, stays = first.is_exact and second.is_exact, first.stays and second.stays
    return Warp(first.active | second.active, matrix, second.size, second.moved, is_exact, stays)


def product(one: Tensor, other: Tensor) -> Tensor:
    """(B, n, m) times (B, m, k), by hand: a product of matrices would be rounded to bfloat16 under autocast."""
    return (one[..., None] * other[:, None]).sum(2)


def resampled(x: Tensor, warp: Warp, *, nearest: bool, border: bool) -> Tensor:
    """(B, C, *in) in, (B, C, *warp.size) of the same dtype out.

    Between values it is interpolated linearly, in float32 or float64, or the nearest one is taken. Outside is
    zero, or with `border` the value at the border that is nearest.

    Raises:
        AugmentError: the warp is for another number of samples or axes.
    """
    if len(warp.matrix) != len(x) or len(warp.size) != x.dim() - 2:
        raise AugmentError(
            f"parameters: got those of {len(warp.matrix)} samples with {len(warp.size)} axes "
            f"for {tuple(x.shape)}, wanted those drawn for this batch"
        )
    if nearest or warp.is_exact:
        return _nearest(x, warp, border)
    wide = widened(x)
    is_fit = x.shape[-1] > 1 and math.prod(x.shape[2:]) <= _MOST_VALUES
    if wide.dtype == torch.float32 and is_fit and _suits_kernels(wide, warp):
        made = _by_kernel("linear", wide, warp, border)
    else:
        made = _linear(wide, warp, border)
        # Those that are not interpolated come out as they went in, bit for bit.
        is_active = warp.active.view(-1, *(1,) * (x.dim() - 1))
        made = torch.where(is_active, made, wide if warp.stays else _nearest(wide, warp, border))
    return narrowed(made, x.dtype)


def _linear(x: Tensor, warp: Warp, border: bool) -> Tensor:
    sizes = x.shape[2:]
    places = _places(warp, x.dtype)
    scaled = [(2.0 * place + 1.0) / size - 1.0 for place, size in zip(places, sizes, strict=True)]
    padding = "border" if border else "zeros"
    return functional.grid_sample(
        x, torch.stack(scaled[::-1], dim=-1), padding_mode=padding, align_corners=False
    )


def _nearest(x: Tensor, warp: Warp, border: bool) -> Tensor:
    if _suits_kernels(x, warp):
        return _by_kernel("nearest", x, warp, border)
    flat = torch.zeros((), dtype=torch.int64, device=x.device)
    is_there = torch.ones((), dtype=torch.bool, device=x.device)
    for place, size in zip(_places(warp, torch.float32), x.shape[2:], strict=True):
        whole = (place + 0.5).floor()
        is_there = is_there & (whole >= 0) & (whole < size)
        flat = flat * size + whole.clamp(0, size - 1).to(torch.int64)
    index = flat.flatten(1)[:, None].expand(-1, x.shape[1], -1)
    found = x.flatten(2).gather(2, index).view(*x.shape[:2], *warp.size)
    return found if border else found.masked_fill(~is_there[:, None], 0)


def _places(warp: Warp, dtype: torch.dtype) -> list[Tensor]:
    """For each axis of the input (B, *size): where the values of the output come from."""
    num_axes = len(warp.size)
    coordinates = []
    for axis, size in enumerate(warp.size):
        steps = torch.arange(size, device=warp.matrix.device, dtype=dtype)
        along = steps.view(*(-1 if other == axis else 1 for other in range(num_axes)))
        coordinates.append(along if warp.moved is None else along + warp.moved[:, axis].to(dtype))
    factors = warp.matrix.to(dtype).view(*warp.matrix.shape, *(1,) * num_axes)
    places = []
    for axis in range(num_axes):
        place = factors[:, axis, num_axes]
        for other, coordinate in enumerate(coordinates):
            place = place + factors[:, axis, other] * coordinate
        places.append(place.expand(-1, *warp.size))
    return places


def _suits_kernels(x: Tensor, warp: Warp) -> bool:
    beside = [one for one in (warp.active, warp.matrix, warp.moved) if one is not None]
    return host_kernels(x, *beside) is not None


def _by_kernel(name: str, x: Tensor, warp: Warp, border: bool) -> Tensor:
    """The same in the host's memory, without a list of places: 4 times as fast for images, 6 for volumes.

    A picture is a volume of one layer, which stays where it is.
    """
    from flatout.augment import warp_kernels

    made = new_batch((*x.shape[:2], *warp.size), x.dtype)
    matrix, moved = warp.matrix, warp.matrix.new_empty(0, 3, 1, 1, 1) if warp.moved is None else warp.moved
    shape, new_shape = (tuple(one.shape) for one in (x, made))
    if x.dim() == 4:
        shape, new_shape = (*shape[:2], 1, *shape[2:]), (*new_shape[:2], 1, *new_shape[2:])
        matrix = functional.pad(matrix, (1, 0, 1, 0))
        moved = moved if warp.moved is None else functional.pad(moved, (0, 0, 0, 0, 1, 0))[:, :, None]
    # The nearest one is taken as bits, so that few kernels have to be compiled.
    flat, flat_made = (one.contiguous().view(-1) for one in (x, made))
    if name == "nearest":
        flat, flat_made = (one.view(_BITS[x.element_size()]) for one in (flat, flat_made))
    stays = warp.stays and x.shape[2:] == warp.size
    active = [array(warp.active), stays] if name == "linear" else []
    arrays = array(flat), shape, array(matrix), array(moved), *active, border, array(flat_made), new_shape
    run_rows(getattr(warp_kernels, name), new_shape[0] * math.prod(new_shape[2:4]), *arrays)
    return made
