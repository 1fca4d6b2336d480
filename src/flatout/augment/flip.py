"""Mirror images and quarter turns: every value moves to another place, none is changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from flatout.augment.draws import Draws
from flatout.augment.image_transform import Spatial, check_axes, checked_axes
from flatout.augment.keys import SampleKeys
from flatout.augment.warp import Warp, still
from flatout.config.image_augmentation import FlipSection, Turn90Section
from flatout.errors import AugmentError

_FLIP = FlipSection()
_TURN = Turn90Section()


class FlipParams(NamedTuple):
    """Parameters of `GPUFlip`."""

    active: Tensor
    flipped: Tensor
    """(B, num_axes) bool: which axes are turned round."""


class GPUFlip(Spatial):
    """Mirror along each of `axes` with probability `p`: -1 is the width, -2 the height, -3 the depth."""

    def __init__(self, axes: Sequence[int] = _FLIP.axes, p: float = _FLIP.p) -> None:
        super().__init__(p)
        self.axes = checked_axes("axes", axes)

    def draw(self, x: Tensor, keys: SampleKeys) -> FlipParams:
        """One chance an axis."""
        check_axes("GPUFlip", self.axes, x)
        draws = Draws(keys, len(self.axes))
        flipped = torch.stack([draws.chance(column, self.p) for column in range(len(self.axes))], dim=1)
        return FlipParams(flipped.any(1), flipped)

    def warp(self, params: FlipParams, size: tuple[int, ...]) -> Warp:
        """Place i of a mirrored axis comes from size - 1 - i."""
        identity = still(params.active, size)
        sign = torch.ones_like(identity.matrix[:, :, 0])
        last = torch.zeros_like(sign)
        for column, axis in enumerate(self.axes):
            sign[:, axis] = 1.0 - 2.0 * params.flipped[:, column]
            last[:, axis] = (size[axis] - 1.0) * params.flipped[:, column]
        linear = identity.matrix[:, :, :-1] * sign[:, :, None]
        return identity._replace(matrix=torch.cat([linear, last[:, :, None]], dim=2))


class TurnParams(NamedTuple):
    """Parameters of `GPUTurn90`."""

    active: Tensor
    turns: Tensor
    """(B,) int64: quarter turns from the first of the axes to the second, 0 to 3."""


class GPUTurn90(Spatial):
    """Turn by 90, 180 or 270 degrees in the plane of two `axes` of equal length."""

    num_draws = 1

    def __init__(self, axes: Sequence[int] = _TURN.axes, p: float = _TURN.p) -> None:
        super().__init__(p)
        self.axes = checked_axes("axes", axes)
        if len(self.axes) != 2:
            raise AugmentError(f"axes: got {tuple(axes)}, wanted two: the plane to turn in")

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> TurnParams:
        """The three turns are equally likely."""
        check_axes("GPUTurn90", self.axes, x)
        self._check_square(tuple(x.shape[2:]))
        return TurnParams(active, torch.where(active, draws.whole(1, 3) + 1, 0))

    def warp(self, params: TurnParams, size: tuple[int, ...]) -> Warp:
        """As `numpy.rot90` turns: out[i, j] = x[j, last - i] for one of them."""
        self._check_square(size)
        one, other = self.axes
        last = size[one] - 1.0
        cosine = (params.turns == 0).to(torch.float32) - (params.turns == 2).to(torch.float32)
        sine = (params.turns == 1).to(torch.float32) - (params.turns == 3).to(torch.float32)
        identity = still(torch.zeros_like(params.active), size)
        matrix = identity.matrix.clone()
        for row, column, value in (
            (one, one, cosine),
            (one, other, sine),
            (other, one, -sine),
            (other, other, cosine),
        ):
            matrix[:, row, column - 1] = value
        matrix[:, one, -1] = last * ((params.turns == 2) | (params.turns == 3))
        matrix[:, other, -1] = last * ((params.turns == 1) | (params.turns == 2))
        return identity._replace(matrix=matrix)

    def _check_square(self, size: tuple[int, ...]) -> None:
        if size[self.axes[0]] != size[self.axes[1]]:
            raise AugmentError(
                f"GPUTurn90: got {size} to turn in axes {self.axes}, wanted equal lengths there: "
                "a quarter turn would change the shape; crop to a square, or use GPUAffine(rotation_deg=...)"
            )
