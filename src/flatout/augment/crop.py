"""Random crop: a window of a fixed size, cut anywhere it fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from flatout.augment.checks import checked_least
from flatout.augment.draws import Draws
from flatout.augment.image_transform import Spatial
from flatout.augment.warp import Warp, still
from flatout.errors import AugmentError


class CropParams(NamedTuple):
    """Parameters of `GPURandomCrop`."""

    active: Tensor
    start: Tensor
    """(B, n) int64: first place of the window on each axis."""


class GPURandomCrop(Spatial):
    """Cut a window of `size`, (H, W) or (D, H, W), out of each sample; in `eval()` the whole stays as it is."""

    num_draws = 3

    def __init__(self, size: Sequence[int]) -> None:
        super().__init__(p=1.0)
        if len(size) not in (2, 3):
            raise AugmentError(f"size: got {tuple(size)}, wanted (H, W) or (D, H, W)")
        self.size = tuple(checked_least("size", length, 1) for length in size)

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> CropParams:
        """All windows that fit are equally likely."""
        self._check_fit(tuple(x.shape[2:]))
        free = [length - own + 1 for length, own in zip(x.shape[2:], self.size, strict=True)]
        starts = [draws.whole(1 + axis, count) for axis, count in enumerate(free)]
        return CropParams(active, torch.stack(starts, dim=1))

    def warp(self, params: CropParams, size: tuple[int, ...]) -> Warp:
        """Place i comes from start + i."""
        self._check_fit(size)
        identity = still(params.active, self.size)
        start = params.start[:, :, None].to(torch.float32)
        return identity._replace(matrix=torch.cat([identity.matrix[:, :, :-1], start], dim=2))

    def like(self, x: Tensor) -> Tensor:
        """The first window."""
        for axis, length in enumerate(self.size):
            x = x.narrow(2 + axis, 0, length)
        return x

    def _check_fit(self, size: tuple[int, ...]) -> None:
        if len(size) != len(self.size) or any(
            own > length for own, length in zip(self.size, size, strict=True)
        ):
            raise AugmentError(
                f"GPURandomCrop: got {size} to cut {self.size} from, wanted as many axes, none shorter; "
                "pad the samples, or crop to less"
            )
