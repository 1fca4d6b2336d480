"""Elastic deformation: a smooth field of displacements, drawn at a few control points."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flatout.augment.checks import checked_least
from flatout.augment.draws import Draws
from flatout.augment.image_transform import Padding, Spatial, checked_padding
from flatout.augment.keys import SampleKeys
from flatout.augment.spline import MARGIN, spline_field
from flatout.augment.warp import Warp, still
from flatout.config.image_augmentation import MOST_FRACTION, ElasticSection
from flatout.errors import AugmentError

_ELASTIC = ElasticSection()


class ElasticParams(NamedTuple):
    """Parameters of `GPUElastic`."""

    active: Tensor
    points: Tensor
    """(B, n, g, ...): displacement of each control point along each axis, in cells; g is num_cells + 3."""


class GPUElastic(Spatial):
    """Bend each sample like rubber: the corners of `num_cells` cells along each axis are moved.

    By up to `max_fraction` of a cell, either way, and that is at most a fifth: then the map stays one-to-one,
    and nothing is torn or folded over.
    """

    def __init__(
        self,
        num_cells: int = _ELASTIC.num_cells,
        max_fraction: float = _ELASTIC.max_fraction,
        p: float = _ELASTIC.p,
        *,
        padding: Padding = _ELASTIC.padding,
    ) -> None:
        super().__init__(p)
        self.num_cells = checked_least("num_cells", num_cells, 1)
        if not 0.0 <= max_fraction <= MOST_FRACTION:
            raise AugmentError(
                f"max_fraction: got {max_fraction!r}, wanted 0 to {MOST_FRACTION}: "
                "points that move further would fold the picture over itself"
            )
        self.max_fraction = float(max_fraction)
        self.padding = checked_padding(padding)

    def draw(self, x: Tensor, keys: SampleKeys) -> ElasticParams:
        """Displacements are uniform, either way, each axis on its own."""
        num_axes = x.dim() - 2
        shape = (num_axes, *(self.num_cells + MARGIN,) * num_axes)
        num_points = torch.Size(shape).numel()
        draws = Draws(keys, 1 + num_points)
        active = draws.chance(0, self.p)
        points = draws.uniform(slice(1, 1 + num_points), -self.max_fraction, self.max_fraction)
        return ElasticParams(active, torch.where(active[:, None], points, 0.0).view(-1, *shape))

    def warp(self, params: ElasticParams, size: tuple[int, ...]) -> Warp:
        """The field in values: a cell of an axis is its length / num_cells long."""
        field = spline_field(params.points, size)
        cells = [field[:, axis] * (length / self.num_cells) for axis, length in enumerate(size)]
        return still(params.active, size)._replace(
            active=params.active, moved=torch.stack(cells, dim=1), is_exact=False, stays=True
        )
