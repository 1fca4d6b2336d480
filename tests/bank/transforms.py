"""Transforms of single samples, of the kinds that users have."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from scipy.signal import butter, filtfilt

from flatout.augment import get_gpu_pretrain_transforms


def filtered(x: Any, rng: np.random.Generator) -> Any:
    """An IIR filter run forwards and backwards, with a cut-off of its own for each view."""
    return filtfilt(*butter(2, rng.uniform(0.2, 0.8)), x)


def scaled(x: Any, rng: np.random.Generator) -> Any:
    """Takes next to no time."""
    return x * rng.uniform(0.5, 2.0)


def old_style(x: Any) -> Any:
    """Draws from every global stream, as transforms written for a DataLoader's workers do."""
    return x * np.random.uniform(0.5, 2.0) + random.random() + torch.rand(1).item()


def failing(x: Any) -> Any:
    """Refuses some samples."""
    if x[0, 0] > 0:
        raise ValueError("above zero")
    return x


def chain() -> Any:
    """Every sample is changed by all six transforms."""
    names = ["time_shift", "amplitude_scale", "gaussian_noise", "time_mask", "frequency_mask", "time_stretch"]
    return get_gpu_pretrain_transforms({name: {"p": 1.0} for name in names})
