"""Cutout: boxes of an image are filled with one value; its masks stay."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flatout.augment.boxes import drawn_boxes, inside_boxes
from flatout.augment.checks import checked_least, checked_share
from flatout.augment.draws import Draws
from flatout.augment.image_transform import Intensity, can_overwrite
from flatout.config.image_augmentation import CutoutSection

_CUTOUT = CutoutSection()


class CutoutParams(NamedTuple):
    """Parameters of `GPUCutout`."""

    active: Tensor
    start: Tensor
    """(B, num_boxes, n) int64: first place of each box on each axis."""
    width: Tensor
    """(B, num_boxes, n) int64: its length there."""


class GPUCutout(Intensity):
    """Fill `num_boxes` boxes of each sample, up to `max_fraction` of each axis long, with `fill`."""

    def __init__(
        self,
        num_boxes: int = _CUTOUT.num_boxes,
        max_fraction: float = _CUTOUT.max_fraction,
        p: float = _CUTOUT.p,
        *,
        fill: float = _CUTOUT.fill,
    ) -> None:
        super().__init__(p)
        self.num_boxes = checked_least("num_boxes", num_boxes, 1)
        self.max_fraction = checked_share("max_fraction", max_fraction)
        self.fill = float(fill)
        self.num_draws = 6 * num_boxes

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> CutoutParams:
        """Lengths from 1 to the longest are equally likely on each axis, then all places where the box fits."""
        boxes = [
            drawn_boxes(draws, 1 + 6 * number, tuple(x.shape[2:]), self.max_fraction)
            for number in range(self.num_boxes)
        ]
        starts, widths = zip(*boxes, strict=True)
        return CutoutParams(active, torch.stack(starts, dim=1), torch.stack(widths, dim=1))

    def alter(self, x: Tensor, params: CutoutParams, may_overwrite: bool = False) -> Tensor:
        """All channels; boxes may overlap."""
        is_inside = torch.zeros((), dtype=torch.bool, device=x.device)
        for number in range(self.num_boxes):
            is_inside = is_inside | inside_boxes(
                tuple(x.shape[2:]), params.start[:, number], params.width[:, number]
            )
        is_inside = is_inside & params.active.view(-1, *(1,) * (x.dim() - 2))
        if can_overwrite(x, may_overwrite):
            return x.masked_fill_(is_inside[:, None], self.fill)
        return x.masked_fill(is_inside[:, None], self.fill)
