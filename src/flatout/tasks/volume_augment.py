"""How volumes are varied: turned and shifted a little, brighter or darker; whole batches, or one with SciPy.

Neither mirrored nor scaled: which side an organ is on, and how large it is, may be what a label says.
"""

from __future__ import annotations

import numpy as np
import torch

from flatout.augment import BatchAugment, GPUAffine, GPUBrightness, GPUContrast, GPUImageCompose, GPUImageNoise
from flatout.train import Sample
from flatout.types import Array

P = 0.5
"""Probability of each change."""
ROTATION_DEG = 10.0
MAX_TRANSLATION = 0.05
"""As a share of each axis."""
CONTRAST = (0.8, 1.2)
BRIGHTNESS = 0.2
"""Of the volume's own deviation, either way."""
NOISE = 0.05


def vary_batches(name: str, seed: int) -> BatchAugment:
    """The changes of whole batches, drawn by sample key."""
    chain = GPUImageCompose(
        [
            GPUAffine(
                (-ROTATION_DEG, ROTATION_DEG), (1.0, 1.0), (0.0, 0.0), MAX_TRANSLATION, P, padding="border"
            ),
            GPUContrast(CONTRAST, P),
            GPUBrightness((-BRIGHTNESS, BRIGHTNESS), P),
            GPUImageNoise(NOISE, P),
        ],
        kinds={name: "image"},
    )
    return BatchAugment(chain, seed=seed)


class VaryVolume:
    """The same for one sample in a worker, as one writes it with SciPy."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, sample: Sample) -> Sample:
        """A new sample; all but the volume stays."""
        volume = sample[self.name].numpy()
        if np.random.random() < P:
            angles = np.random.uniform(-ROTATION_DEG, ROTATION_DEG, 3)
            shares = np.random.uniform(-MAX_TRANSLATION, MAX_TRANSLATION, 3)
            volume = moved(volume, angles, shares * volume.shape[1:])
        if np.random.random() < P:
            volume = volume.mean() + (volume - volume.mean()) * np.random.uniform(*CONTRAST)
        if np.random.random() < P:
            volume = volume + volume.std() * np.random.uniform(-BRIGHTNESS, BRIGHTNESS)
        if np.random.random() < P:
            volume = volume + volume.std() * NOISE * np.random.standard_normal(volume.shape)
        made = torch.from_numpy(np.ascontiguousarray(volume, sample[self.name].numpy().dtype))
        return {**sample, self.name: made}


def moved(volume: Array, angles_deg: Array, shifts: Array) -> Array:
    """(C, X, Y, Z) turned about its centre, by one angle an axis, and shifted, in one linear interpolation."""
    from scipy.ndimage import affine_transform

    inverse = np.eye(3)
    for axis, angle in list(enumerate(np.deg2rad(angles_deg)))[::-1]:
        one, other = [number for number in range(3) if number != axis]
        turn = np.eye(3)
        turn[one, one] = turn[other, other] = np.cos(angle)
        turn[one, other], turn[other, one] = np.sin(angle), -np.sin(angle)
        inverse = inverse @ turn
    centre = (np.array(volume.shape[1:]) - 1) / 2
    offset = centre - inverse @ (centre + shifts)
    return np.stack([affine_transform(channel, inverse, offset, order=1, mode="nearest") for channel in volume])
