"""Affine maps: rotation, scale, shear and translation about the centre, in one resampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from flatout.augment.checks import Range, checked_range, checked_share
from flatout.augment.draws import Draws
from flatout.augment.image_transform import Padding, Spatial, checked_axes, checked_padding
from flatout.augment.warp import Warp, product, still
from flatout.config.image_augmentation import AffineSection
from flatout.errors import AugmentError

_AFFINE = AffineSection()

_PLANES = {2: ((0, 1),), 3: ((1, 2), (0, 2), (0, 1))}
"""For each angle the two axes it turns: one in images; in volumes about depth, height and width."""
_RADIANS = math.pi / 180.0


class AffineParams(NamedTuple):
    """Parameters of `GPUAffine`; inactive samples have neutral ones."""

    active: Tensor
    rotation_deg: Tensor
    """(B, 1) for images, (B, 3) for volumes about depth, height, width: from the first axis to the second."""
    scale: Tensor
    """(B,): above 1 makes things larger."""
    shear_deg: Tensor
    """(B, 1) or (B, 3), of the planes as above: the first axis is slanted along the second."""
    translation: Tensor
    """(B, n) in values, towards the end of each axis."""


class GPUAffine(Spatial):
    """Rotate, scale, shear and translate about the centre, interpolating once.

    Args:
        rotation_deg: smallest and largest angle.
        scale: smallest and largest factor, the same for all axes.
        shear_deg: smallest and largest slant.
        max_translation: largest shift either way, as a share of each axis.
        p: probability that a sample is changed.
        padding: what comes in from outside.
        rotation_axes: of volumes, those to turn about: -3 the depth, -2 the height, -1 the width.
        spacing: size of a value along each axis, (H, W) or (D, H, W), in one unit; turning and slanting then
            happen in that unit. Absent: values are square.
    """

    num_draws = 10

    def __init__(
        self,
        rotation_deg: Range = _AFFINE.rotation_deg,
        scale: Range = _AFFINE.scale,
        shear_deg: Range = _AFFINE.shear_deg,
        max_translation: float = _AFFINE.max_translation,
        p: float = _AFFINE.p,
        *,
        padding: Padding = _AFFINE.padding,
        rotation_axes: Sequence[int] = _AFFINE.rotation_axes,
        spacing: Sequence[float] | None = _AFFINE.spacing,
    ) -> None:
        super().__init__(p)
        self.rotation_deg = checked_range("rotation_deg", rotation_deg)
        self.scale = checked_range("scale", scale, above=0.0)
        self.shear_deg = checked_range("shear_deg", shear_deg)
        if max(map(abs, self.shear_deg)) >= 90.0:
            raise AugmentError(
                f"shear_deg: got {shear_deg!r}, wanted slants of less than 90 degrees either way"
            )
        self.max_translation = checked_share("max_translation", max_translation)
        self.padding = checked_padding(padding)
        self.rotation_axes = checked_axes("rotation_axes", rotation_axes)
        self.spacing = None if spacing is None else _checked_spacing(spacing)

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> AffineParams:
        """Everything is uniform over its range; each axis on its own."""
        size = x.shape[2:]
        num_axes, num_planes = len(size), len(_PLANES[len(size)])
        turns = draws.uniform(slice(1, 1 + num_planes), *self.rotation_deg)
        slants = draws.uniform(slice(5, 5 + num_planes), *self.shear_deg)
        shares = draws.uniform(slice(8, 8 + num_axes), -self.max_translation, self.max_translation)
        shifts = torch.stack([shares[:, axis] * length for axis, length in enumerate(size)], dim=1)
        is_on = active[:, None]
        return AffineParams(
            active,
            torch.where(is_on, self._allowed(turns), 0.0),
            torch.where(active, draws.uniform(4, *self.scale), 1.0),
            torch.where(is_on, slants, 0.0),
            torch.where(is_on, shifts, 0.0),
        )

    def warp(self, params: AffineParams, size: tuple[int, ...]) -> Warp:
        """The map backwards: input = centre + inverse @ (output - centre - translation)."""
        identity = still(params.active, size)
        inverse = self._in_values(self._inverse(params, identity.matrix[:, :, :-1]))
        centre = torch.zeros_like(params.translation)
        for axis, length in enumerate(size):
            centre[:, axis] = (length - 1) / 2
        offset = centre - (inverse * (centre + params.translation)[:, None, :]).sum(2)
        matrix = torch.cat([inverse, offset[:, :, None]], dim=2)
        # The centre is rounded on its way there and back: who is not moved must land on whole places.
        matrix = torch.where(params.active[:, None, None], matrix, identity.matrix)
        return identity._replace(active=params.active, matrix=matrix, is_exact=False, stays=True)

    def _inverse(self, params: AffineParams, identity: Tensor) -> Tensor:
        """(B, n, n): of scale, then slants, then turns, these about the width first and the depth last."""
        planes = list(enumerate(_PLANES[identity.shape[1]]))[::-1]
        inverse = identity / params.scale[:, None, None]
        for number, (one, other) in planes:
            slant = identity.clone()
            slant[:, one, other] = -torch.tan(params.shear_deg[:, number] * _RADIANS)
            inverse = product(inverse, slant)
        for number, (one, other) in planes:
            angle = params.rotation_deg[:, number] * _RADIANS
            turn = identity.clone()
            turn[:, one, one], turn[:, other, other] = angle.cos(), angle.cos()
            turn[:, one, other], turn[:, other, one] = angle.sin(), -angle.sin()
            inverse = product(inverse, turn)
        return inverse

    def _in_values(self, inverse: Tensor) -> Tensor:
        """From units of the spacing to values."""
        if self.spacing is None:
            return inverse
        num_axes = inverse.shape[1]
        if len(self.spacing) != num_axes:
            raise AugmentError(
                f"GPUAffine: spacing: got {self.spacing}, wanted {num_axes} numbers, one an axis"
            )
        rows = [
            torch.stack(
                [inverse[:, row, column] * (there / here) for column, there in enumerate(self.spacing)], 1
            )
            for row, here in enumerate(self.spacing)
        ]
        return torch.stack(rows, dim=1)

    def _allowed(self, turns: Tensor) -> Tensor:
        """Without those about axes that are not to be turned about; an image has only one."""
        if turns.shape[1] == 1:
            return turns
        columns = [turns[:, at] * float(at - 3 in self.rotation_axes) for at in range(3)]
        return torch.stack(columns, dim=1)


def _checked_spacing(spacing: Sequence[float]) -> tuple[float, ...]:
    if len(spacing) not in (2, 3) or not all(0.0 < length < float("inf") for length in spacing):
        raise AugmentError(f"spacing: got {tuple(spacing)}, wanted (H, W) or (D, H, W) above 0, in one unit")
    return tuple(float(length) for length in spacing)
