"""What an ordinary user writes to read a file: the peers' side of each job, with the field's usual libraries.

Each is the fastest of the usual ways to the same array: `get_fdata` beats `np.asarray(dataobj)` by 9 %,
`affine_transform` with one factor an axis beats `map_coordinates` by far and needs no loop over axes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flatout.types import Array

SPACING_MM = (1.5, 1.5, 1.5)
SIZE = (32, 40, 32)
"""Holds the largest hippocampus scan at 1.5 mm."""
RATE = 5000
LENGTH = 4000


def load_nifti(path: str) -> Array:
    """(1, X, Y, Z) float32 as stored."""
    import nibabel

    return _channel(nibabel.load(path).get_fdata(dtype=np.float32))


def load_nifti_resampled(path: str) -> Array:
    """(1, *SIZE) float32: RAS, linear at SPACING_MM around the centre, padded with the minimum."""
    import nibabel
    from scipy.ndimage import affine_transform

    image = nibabel.as_closest_canonical(nibabel.load(path))
    volume = image.get_fdata(dtype=np.float32)
    ratio = np.array(SPACING_MM) / image.header.get_zooms()[:3]
    size = np.maximum(np.rint(volume.shape / ratio), 1).astype(int)
    offset = (np.array(volume.shape) - 1 - (size - 1) * ratio) / 2
    return _channel(fit(affine_transform(volume, ratio, offset, tuple(size), order=1, mode="nearest")))


def fit(volume: Array) -> Array:
    """Cropped and padded around the centre to SIZE."""
    start = [max(old - new, 0) // 2 for old, new in zip(volume.shape, SIZE, strict=True)]
    volume = volume[tuple(slice(at, at + new) for at, new in zip(start, SIZE, strict=True))]
    padded = np.full(SIZE, volume.min(), np.float32)
    start = [(new - old) // 2 for old, new in zip(volume.shape, SIZE, strict=True)]
    padded[tuple(slice(at, at + old) for at, old in zip(start, volume.shape, strict=True))] = volume
    return padded


def load_wav(path: str) -> Array:
    """(1, LENGTH) float32 at RATE, cut or zero-padded at its end."""
    import soundfile
    import soxr

    sound, rate = soundfile.read(path, dtype="float32")
    changed = soxr.resample(sound, rate, RATE)[:LENGTH]
    padded = np.zeros((1, LENGTH), np.float32)
    padded[0, : len(changed)] = changed
    return padded


def _channel(volume: Any) -> Array:
    return np.asarray(volume)[None]
