"""What every transform does to one sample, told a second time in NumPy and SciPy: slow, plain, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.fft
import scipy.interpolate
import scipy.signal
import torch

from flatout import augment
from flatout.seeding import MASK_64, splitmix64
from flatout.types import Array

GOLDEN = 0x9E3779B97F4A7C15
FIRST_NOISE = 1 << 34

Row = dict[str, Any]
"""The parameters of one sample."""


def refer(transform: Any, x: torch.Tensor, params: Any) -> Array:
    """The batch that `transform.apply(x, params)` should give, sample by sample."""
    change = REFERENCES[type(transform)]
    samples = x.to(torch.float64).numpy()
    rows = rows_of(params, len(samples))
    return np.stack(
        [
            change(sample, row, transform) if row["active"] else sample
            for sample, row in zip(samples, rows, strict=True)
        ]
    )


def rows_of(params: Any, num_samples: int) -> Iterator[Row]:
    columns = {name: value.numpy() for name, value in params._asdict().items()}
    return ({name: column[at] for name, column in columns.items()} for at in range(num_samples))


def mix(number: int) -> int:
    """64 bits in, 64 mixed bits out: this number of the splitmix64 sequence that starts at 0."""
    return splitmix64((number - 1) * GOLDEN & MASK_64)


def normals(state: int, num: int) -> Array:
    """The noise of one sample, from Python's own integers."""
    half = (num + 1) // 2
    start = int(state) & MASK_64
    hashes = [mix(start ^ (FIRST_NOISE + at)) for at in range(half)]
    radius = [math.sqrt(-2.0 * math.log(((h >> 40) + 1) / 2**24)) for h in hashes]
    angle = [2.0 * math.pi * ((h >> 8) & 0xFFFFFF) / 2**24 for h in hashes]
    pairs = list(zip(radius, angle, strict=True))
    return np.array([r * math.cos(a) for r, a in pairs] + [r * math.sin(a) for r, a in pairs])[:num]


def time_shift(sample: Array, row: Row, _: Any) -> Array:
    return np.roll(sample, int(row["shift"]), axis=-1)


def time_stretch(sample: Array, row: Row, _: Any) -> Array:
    step = float(np.round(np.float32(2**24) / row["factor"])) / 2**24
    old = np.arange(sample.shape[-1])
    return np.stack([np.interp(old * step, old, channel, right=0.0) for channel in sample])


def amplitude_scale(sample: Array, row: Row, _: Any) -> Array:
    return sample * float(row["factor"])


def polarity_inversion(sample: Array, row: Row, _: Any) -> Array:
    return -sample


def gain_envelope(sample: Array, row: Row, _: Any) -> Array:
    gains, length = row["gains"].astype(np.float64), sample.shape[-1]
    if length == 1:
        return sample * gains[0]
    points = np.linspace(0, length - 1, len(gains))
    return sample * scipy.interpolate.CubicHermiteSpline(points, gains, np.zeros(len(gains)))(np.arange(length))


def time_mask(sample: Array, row: Row, _: Any) -> Array:
    masked = sample.copy()
    for start, width in zip(row["start"], row["width"], strict=True):
        masked[:, start : start + width] = 0.0
    return masked


def frequency_mask(sample: Array, row: Row, _: Any) -> Array:
    spectrum = scipy.fft.rfft(sample)
    spectrum[:, row["start"][0] : row["start"][0] + row["width"][0]] = 0.0
    return scipy.fft.irfft(spectrum, n=sample.shape[-1])


def filtered(sample: Array, transform: Any, *filters: tuple[str, float]) -> Array:
    """Analogue Butterworth filters, their gain squared, on the odd continuation of the sample."""
    length = sample.shape[-1]
    num = min(transform._most_reflected, length - 1)
    long = np.pad(sample, ((0, 0), (num, num)), mode="reflect", reflect_type="odd") if num else sample
    frequencies = scipy.fft.rfftfreq(long.shape[-1], 1 / transform.sample_rate)
    spectrum = scipy.fft.rfft(long)
    for kind, cutoff in filters:
        analogue = scipy.signal.butter(transform.order, float(cutoff), kind, analog=True, output="zpk")
        spectrum = spectrum * np.abs(scipy.signal.freqs_zpk(*analogue, worN=frequencies)[1]) ** 2
    return scipy.fft.irfft(spectrum, n=long.shape[-1])[:, num : num + length]


def low_pass(sample: Array, row: Row, transform: Any) -> Array:
    return filtered(sample, transform, ("low", row["cutoff_hz"]))


def high_pass(sample: Array, row: Row, transform: Any) -> Array:
    return filtered(sample, transform, ("high", row["cutoff_hz"]))


def band_pass(sample: Array, row: Row, transform: Any) -> Array:
    return filtered(sample, transform, ("high", row["low_hz"]), ("low", row["high_hz"]))


def gaussian_noise(sample: Array, row: Row, transform: Any) -> Array:
    noise = normals(row["states"], sample.size).reshape(sample.shape)
    return sample + transform.std * sample.std() * noise


def coloured_noise(sample: Array, row: Row, transform: Any) -> Array:
    num_bins = sample.shape[-1] // 2 + 1
    parts = normals(row["states"], sample.shape[0] * 2 * num_bins).reshape(sample.shape[0], 2, num_bins)
    gain = np.array([0.0] + [bin ** (-float(row["exponent"]) / 2) for bin in range(1, num_bins)])
    noise = scipy.fft.irfft((parts[:, 0] + 1j * parts[:, 1]) * gain, n=sample.shape[-1])
    size = np.sqrt(np.mean(noise**2))
    return sample + transform.std * sample.std() * noise / size if size else sample


def background_mix(sample: Array, row: Row, transform: Any) -> Array:
    background = transform.backgrounds.numpy()[int(row["entry"])].astype(np.float64)
    places = range(int(row["start"]), int(row["start"]) + sample.shape[-1])
    part = background.take(places, axis=-1, mode="wrap")
    loud, quiet = np.sqrt(np.mean(sample**2)), np.sqrt(np.mean(part**2))
    return sample + part * loud / quiet / 10 ** (float(row["snr_db"]) / 20) if quiet else sample


def baseline_wander(sample: Array, row: Row, transform: Any) -> Array:
    seconds = np.arange(sample.shape[-1]) / transform.sample_rate
    waves = [
        np.sin(2 * np.pi * (float(f) * seconds + float(turn)))
        for f, turn in zip(row["frequency_hz"], row["phase"], strict=True)
    ]
    return sample + float(row["amplitude"]) * sample.std() * np.mean(waves, axis=0)


REFERENCES: dict[type, Callable[[Array, Row, Any], Array]] = {
    augment.GPUTimeShift: time_shift,
    augment.GPUTimeStretch: time_stretch,
    augment.GPUAmplitudeScale: amplitude_scale,
    augment.GPUPolarityInversion: polarity_inversion,
    augment.GPUGainEnvelope: gain_envelope,
    augment.GPUTimeMask: time_mask,
    augment.GPUFrequencyMask: frequency_mask,
    augment.GPULowPass: low_pass,
    augment.GPUHighPass: high_pass,
    augment.GPUBandPass: band_pass,
    augment.GPUGaussianNoise: gaussian_noise,
    augment.GPUColouredNoise: coloured_noise,
    augment.GPUBackgroundMix: background_mix,
    augment.GPUBaselineWander: baseline_wander,
}
