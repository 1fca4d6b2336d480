"""White noise on images and volumes, as a share of each sample's own deviation."""

from __future__ import annotations

from torch import Tensor

from flatout.augment.draws import Draws
from flatout.augment.noise import NoiseParams, checked_std
from flatout.augment.straight import Curve, Straight
from flatout.config.image_augmentation import ImageNoiseSection

_NOISE = ImageNoiseSection()


class GPUImageNoise(Straight):
    """Add white noise whose deviation is `std` times the sample's own: that of `GPUGaussianNoise`."""

    def __init__(self, std: float = _NOISE.std, p: float = _NOISE.p) -> None:
        super().__init__(p)
        self.std = checked_std(std)

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> NoiseParams:
        """The noise of a sample follows from its key."""
        return NoiseParams(active, draws.keys.states)

    def curve(self, params: NoiseParams) -> Curve:
        """Every channel has its own noise, all at one level."""
        return Curve(params.active, std=self.std, states=params.states)
