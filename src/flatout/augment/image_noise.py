"""White noise on images and volumes, as a share of each sample's own deviation."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from flatout.augment.draws import Draws, normals
from flatout.augment.host import array, host_kernels
from flatout.augment.image_transform import Intensity, can_overwrite, each
from flatout.augment.keys import FIRST_NOISE
from flatout.augment.memory import new_batch
from flatout.augment.moments import moments
from flatout.augment.noise import NoiseParams, checked_std
from flatout.augment.threads import run_rows
from flatout.config.image_augmentation import ImageNoiseSection

_NOISE = ImageNoiseSection()


class GPUImageNoise(Intensity):
    """Add white noise whose deviation is `std` times the sample's own: that of `GPUGaussianNoise`."""

    def __init__(self, std: float = _NOISE.std, p: float = _NOISE.p) -> None:
        super().__init__(p)
        self.std = checked_std(std)

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> NoiseParams:
        """The noise of a sample follows from its key."""
        return NoiseParams(active, draws.keys.states)

    def alter(self, x: Tensor, params: NoiseParams, may_overwrite: bool = False) -> Tensor:
        """Every channel has its own noise, all at one level."""
        is_own = len(params.states) == len(x) == len(params.active)
        if is_own and x.dtype == torch.float32 and (kernels := host_kernels(x, *params)) is not None:
            return self._by_kernel(kernels, x.contiguous(), params, may_overwrite)
        level = torch.where(params.active, moments(x)[1] * self.std, 0.0).to(x.dtype)
        noise = normals(params.states, math.prod(x.shape[1:])).view(x.shape)
        return x + noise * each(level, x)

    def _by_kernel(self, kernels: ModuleType, x: Tensor, params: NoiseParams, may_overwrite: bool) -> Tensor:
        """Level, noise and sum of one sample after another, each thread some of them."""
        out = x if can_overwrite(x, may_overwrite) else new_batch(tuple(x.shape), x.dtype)
        states = array(params.states ^ FIRST_NOISE).view(np.uint64)
        arrays = array(x.flatten(1)), array(params.active), states, array(out.flatten(1))

        def add(first: int, last: int) -> None:
            rows, active, own_states, made = (one[first:last] for one in arrays)
            kernels.add_noise(rows, active, own_states, np.float32(self.std), made)

        run_rows(add, len(x))
        return out
