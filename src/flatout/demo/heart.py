"""Heart sounds made from arithmetic: two beats a cycle, and the murmur of each of five diagnoses."""

from __future__ import annotations

import numpy as np

from flatout.seeding import child_seed
from flatout.types import Array

RATE_HZ = 8000
CLASSES = ("AS", "MR", "MS", "MVP", "N")
"""Aortic stenosis, mitral regurgitation, mitral stenosis, mitral valve prolapse, normal."""

_SMOOTHING = {"MS": 40}
"""Samples that murmur noise is averaged over: a rumble below 100 Hz; the others hiss up to 500 Hz."""


def heart_sound(kind: str, number: int) -> Array:
    """Recording `number` of a class: int16 at 8 kHz, 2 to 4 s; the same numbers on every machine."""
    seed = child_seed(number, f"demo heart sound {kind}")
    random = np.random.RandomState(seed % 2**32)  # the one NumPy stream that is promised never to change
    duration_s, period_s = random.uniform(2.0, 4.0), 60.0 / random.uniform(55.0, 105.0)
    systole_s = period_s * random.uniform(0.32, 0.38)
    time_s = np.arange(int(duration_s * RATE_HZ)) / RATE_HZ
    sound = 0.01 * random.standard_normal(len(time_s))
    for start_s in np.arange(random.uniform(0.05, 0.3), duration_s, period_s):
        _add_burst(sound, start_s, random.uniform(45.0, 65.0), 0.030, 1.0)
        _add_burst(sound, start_s + systole_s, random.uniform(70.0, 100.0), 0.020, 0.7)
        if kind == "MVP":
            _add_burst(sound, start_s + 0.5 * systole_s, 180.0, 0.006, 0.4)
    noise = _smooth(random.standard_normal(len(time_s)), _SMOOTHING.get(kind, 8))
    sound += random.uniform(0.15, 0.35) * noise * murmur_envelope(kind, time_s % period_s, period_s, systole_s)
    scaled: Array = np.rint(sound / np.abs(sound).max() * 0.8 * 32767)
    return scaled.astype(np.int16)


def murmur_envelope(kind: str, phase_s: Array, period_s: float, systole_s: float) -> Array:
    """How loud the murmur of a class is at each moment of the cycle, 0 to 1."""
    systole, diastole = phase_s / systole_s, (phase_s - systole_s) / (period_s - systole_s)
    shapes = {
        "AS": np.clip(1.0 - np.abs(2.0 * systole - 1.0), 0.0, 1.0),
        "MR": (systole > 0.1) & (systole < 0.95),
        "MS": (diastole > 0.3) & (diastole < 0.9),
        "MVP": (systole > 0.55) & (systole < 0.95),
        "N": np.zeros(len(phase_s)),
    }
    return np.asarray(shapes[kind], np.float64)


def _add_burst(sound: Array, centre_s: float, frequency_hz: float, width_s: float, loudness: float) -> None:
    """A tone under a bell of `width_s`, added in place."""
    start, stop = (int((centre_s + side * 4.0 * width_s) * RATE_HZ) for side in (-1.0, 1.0))
    start, stop = max(start, 0), min(stop, len(sound))
    since_s = np.arange(start, stop) / RATE_HZ - centre_s
    bell = np.exp(-0.5 * (since_s / width_s) ** 2)
    sound[start:stop] += loudness * bell * np.sin(2.0 * np.pi * frequency_hz * since_s)


def _smooth(noise: Array, num_samples: int) -> Array:
    smoothed = np.convolve(noise, np.ones(num_samples), mode="same")
    return np.asarray(smoothed / smoothed.std())
