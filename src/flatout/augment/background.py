"""Background mixing: a recording of something else, added at a chosen distance in loudness."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flatout.augment.checks import Range, check_signal, checked_range
from flatout.augment.draws import Draws
from flatout.augment.level import TINY, root_mean_square
from flatout.augment.transform import Transform
from flatout.config.augmentation import BackgroundMixSection
from flatout.errors import AugmentError

_MIX = BackgroundMixSection()


class BackgroundParams(NamedTuple):
    """Parameters of `GPUBackgroundMix`."""

    active: Tensor
    entry: Tensor
    """(B,) int64: which background."""
    start: Tensor
    """(B,) int64: its first value that is used."""
    snr_db: Tensor
    """(B,) float32: how far it lies below the sample."""


class GPUBackgroundMix(Transform):
    """Add a random part of a random background, `snr_db` decibels below the sample.

    `backgrounds` is (N, 1 or C, L), kept beside the model on its device. A background that is shorter than the
    sample is repeated; a longer one is cut anywhere.
    """

    backgrounds: Tensor
    num_draws = 3

    def __init__(self, backgrounds: Tensor, snr_db: Range = _MIX.snr_db, p: float = _MIX.p) -> None:
        super().__init__(p)
        check_signal("backgrounds", backgrounds)
        if len(backgrounds) == 0:
            raise AugmentError("backgrounds: got none, wanted (N, C, L) with at least one")
        self.snr_db = checked_range("snr_db", snr_db)
        # Not in checkpoints: it is data, and can be large.
        self.register_buffer("backgrounds", backgrounds.to(torch.float32), persistent=False)

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> BackgroundParams:
        """All backgrounds are equally likely, and all places in them where the sample fits."""
        num_backgrounds, num_channels, length = self.backgrounds.shape
        if num_channels not in (1, x.shape[1]):
            raise AugmentError(
                f"GPUBackgroundMix: got backgrounds of {num_channels} channels for a batch of {x.shape[1]}, "
                "wanted as many, or one for all"
            )
        num_places = length - x.shape[-1] + 1 if length >= x.shape[-1] else length
        return BackgroundParams(
            active, draws.whole(1, num_backgrounds), draws.whole(2, num_places), draws.uniform(3, *self.snr_db)
        )

    def alter(self, x: Tensor, params: BackgroundParams) -> Tensor:
        """Both are compared by their root mean square over the length of the sample."""
        num_channels, length = self.backgrounds.shape[1:]
        places = (params.start[:, None] + torch.arange(x.shape[-1], device=x.device)) % length
        channels = torch.arange(num_channels, device=x.device)
        part = self.backgrounds[params.entry[:, None, None], channels[None, :, None], places[:, None, :]]
        below = 10.0 ** (params.snr_db[:, None, None] * -0.05)
        return x + part * (root_mean_square(x) / root_mean_square(part).clamp_min(TINY) * below)
