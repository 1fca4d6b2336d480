"""What happens to a waveform before it is stored; every function takes and gives (C, T) arrays."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

import numpy as np

from flatout.errors import SampleError
from flatout.source.soxr_stream import change_rate
from flatout.types import Array, Limits
from flatout.units import bytes_text

SLACK_S = 0.01
"""Manifests round times: an end this far behind the recording's end is taken for the end."""
WINDOW_BYTES = 1 << 10
"""What a window takes beside its values until its row is stored (dict, array, key, checksums): 500 to 900."""
MAX_POLYPHASE = 1_000_000
"""Largest numerator or denominator of a rate change that SciPy is given; its filter has 20 taps for each."""


def cut_segment(signal: Array, rate: float, offset_s: float, duration_s: float | None) -> Array:
    """The part from `offset_s` on, `duration_s` long (absent: to the end).

    Raises:
        SampleError: it does not lie within the signal.
    """
    num_samples = signal.shape[1]
    start = round(offset_s * rate)
    stop = num_samples if duration_s is None else round((offset_s + duration_s) * rate)
    if num_samples < stop <= num_samples + math.ceil(SLACK_S * rate):
        stop = num_samples
    if not 0 <= start < stop <= num_samples:
        raise SampleError(
            "transform",
            f"a segment of samples {start:,} to {stop:,} is wanted, the signal has {num_samples:,} "
            f"({num_samples / rate:.3f} s)",
        )
    return signal[:, start:stop]


def mix_channels(signal: Array, rule: str) -> Array:
    """Several channels -> as `rule` says: `first`, their `mean`, all (`keep`), or none (`refuse`)."""
    num_channels = signal.shape[0]
    if num_channels == 1 or rule == "keep":
        return signal
    if rule == "first":
        return signal[:1]
    if rule == "mean":
        mixed: Array = signal.mean(axis=0, keepdims=True, dtype=signal.dtype)
        return mixed
    raise SampleError("transform", f"{num_channels} channels, wanted 1; set channels to first, mean or keep")


def resampler() -> str:
    """Which library changes rates here: `soxr` where it is installed, else `scipy`."""
    return "scipy" if _soxr() is None else "soxr"


@cache
def _soxr() -> Any:
    try:
        import soxr
    except ImportError:
        return None
    return soxr


def resample(signal: Array, rate: float, new_rate: float, limits: Limits, most: int | None = None) -> Array:
    """(C, T) at `rate` -> (C, floor(T * new_rate / rate + 1/2)) at `new_rate`, without aliasing.

    Of a longer result at least the first `most` samples, and perhaps no more.

    soxr at quality HQ (180 us for 17,560 samples from 8 to 5 kHz), else SciPy's polyphase filter (400 us, and
    0.9 s once for its import). The two agree in length and closely in values, not in bits.

    Raises:
        SampleError: nothing would be left, or more than any sample may have.
    """
    if rate == new_rate:
        return signal
    ratio = _exact_ratio(rate, new_rate)
    num_out = (2 * ratio.numerator * signal.shape[1] + ratio.denominator) // (2 * ratio.denominator)
    if not 0 < num_out <= _most_samples(signal, limits):
        raise SampleError(
            "transform",
            f"{signal.shape[1]:,} samples at {rate:g} Hz become {num_out:,} at {new_rate:g} Hz "
            f"(max_sample_bytes is {limits.max_sample_bytes:,}); is the rate in the file right?",
        )
    if _soxr() is None:
        return fit_length(_polyphase(signal, ratio), num_out, limits)
    num_wanted = num_out if most is None else min(num_out, most)
    return fit_length(_by_soxr(signal, rate, new_rate, num_wanted), num_wanted, limits)


def _most_samples(signal: Array, limits: Limits) -> int:
    return int(limits.max_sample_bytes // (signal.shape[0] * signal.itemsize))


@lru_cache(maxsize=256)  # 15 us a pair of rates, and a set of files has few
def _exact_ratio(rate: float, new_rate: float) -> Fraction:
    """Of the rates as they were written: 333.33 is 33333/100, not the nearest binary fraction."""
    return Fraction(repr(float(new_rate))) / Fraction(repr(float(rate)))


def _by_soxr(signal: Array, rate: float, new_rate: float, most: int) -> Array:
    frames = signal[0] if signal.shape[0] == 1 else np.ascontiguousarray(signal.T)
    try:
        changed = change_rate(_soxr(), frames, rate, new_rate, most)
    except (ValueError, RuntimeError) as error:
        raise SampleError("transform", f"no change from {rate:g} to {new_rate:g} Hz: {error}") from error
    return changed[None] if changed.ndim == 1 else np.ascontiguousarray(changed.T)


def _polyphase(signal: Array, ratio: Fraction) -> Array:
    from scipy.signal import resample_poly

    if max(ratio.numerator, ratio.denominator) > MAX_POLYPHASE:
        raise SampleError(
            "transform",
            f"a rate change by {ratio} needs soxr: pip install 'flatout[audio]', or round the rate",
        )
    changed: Array = resample_poly(signal, ratio.numerator, ratio.denominator, axis=1)
    return changed


@lru_cache(maxsize=64)
def design_band(low_hz: float, high_hz: float, order: int, rate: float) -> Array:
    """Second-order sections of a Butterworth band-pass; a low-pass where `low_hz` is 0.

    Raises:
        SampleError: the band reaches beyond half the rate.
    """
    from scipy.signal import butter

    if high_hz >= rate / 2:
        raise SampleError(
            "transform", f"the band reaches {high_hz:g} Hz, a signal at {rate:g} Hz only {rate / 2:g} Hz"
        )
    edges: Any = (low_hz, high_hz) if low_hz > 0 else high_hz
    sections: Array = butter(order, edges, btype="bandpass" if low_hz > 0 else "lowpass", fs=rate, output="sos")
    return sections


def filter_band(signal: Array, sections: Array) -> Array:
    """The signal filtered forwards and backwards, so that nothing shifts in time.

    Raises:
        SampleError: the signal is too short for the filter.
    """
    from scipy.signal import sosfiltfilt

    num_edge = 3 * (2 * len(sections) + 1)  # mirrored at both ends, so that the filter has settled
    if signal.shape[1] <= num_edge:
        raise SampleError(
            "transform", f"{signal.shape[1]} samples are too few for this band-pass; it needs over {num_edge}"
        )
    filtered: Array = sosfiltfilt(sections, signal, axis=1, padlen=num_edge)
    return filtered.astype(signal.dtype)


def check_varies(signal: Array) -> None:
    """Refuse a signal whose finite values are all the same, which no scale of its own can normalise."""
    low, high = signal.min(), signal.max()
    if not (math.isfinite(low) and math.isfinite(high)):
        values = _finite(signal)
        if not values.size:
            return
        low, high = values.min(), values.max()
    if low == high:
        raise SampleError("transform", f"the signal is constant ({low:g}) and cannot be normalised")


def scale_fixed(signal: Array, mean: float | list[float], std: float | list[float]) -> Array:
    """(x - mean) / std, each one number or one a channel."""
    return (signal - _per_channel(signal, mean, "mean")) / _per_channel(signal, std, "std")


def _per_channel(signal: Array, value: float | list[float], what: str) -> Array:
    numbers: Array = np.atleast_1d(np.asarray(value, signal.dtype))
    if len(numbers) not in (1, signal.shape[0]):
        raise SampleError("transform", f"{what} has {len(numbers)} numbers for {signal.shape[0]} channels")
    return numbers[:, None]


def scale_sample(signal: Array) -> Array:
    """Mean 0 and deviation 1 of the finite values of all channels together, so that their ratio stays."""
    check_varies(signal)
    mean, values = float(signal.mean(dtype=np.float64)), signal
    if not math.isfinite(mean):
        values = _finite(signal)
        if not values.size:
            return signal
        mean = float(values.mean(dtype=np.float64))
    return (signal - mean) / float(values.std(dtype=np.float64))


def scale_percentiles(signal: Array, percentiles: tuple[float, float]) -> Array:
    """The two percentiles of the sample's finite values become 0 and 1; values beyond them lie beyond."""
    values = _finite(signal)
    if not values.size:
        return signal
    low, high = (float(value) for value in np.percentile(values, percentiles))
    if low == high:
        raise SampleError("transform", f"percentiles {percentiles} are both {low:g}: nothing to normalise by")
    return (signal - low) / (high - low)


def _finite(signal: Array) -> Array:
    """The finite values; the signal itself where all of it is finite."""
    is_finite = np.isfinite(signal)
    return signal if is_finite.all() else signal[is_finite]


def scale_unit(signal: Array, full_scale: tuple[float, float]) -> Array:
    """The range a recording can have becomes 0 to 1; what a filter lifts beyond it is clipped."""
    low, high = full_scale
    return np.clip((signal - low) / (high - low), 0.0, 1.0)


def cut_windows(signal: Array, length: int, hop: int, remainder: str, limits: Limits) -> tuple[Array, ...]:
    """Windows of `length` that start every `hop` samples; `pad` fills a last, short one with zeros.

    Raises:
        SampleError: the signal is shorter than one window and is not to be padded, or its windows overlap so
            much that all of them together are more than a sample may be.
    """
    num_samples = signal.shape[1]
    num_windows = max(0, (num_samples - length) // hop + 1)
    _check_windows(signal, num_windows, length, hop, limits)
    windows = [signal[:, at * hop : at * hop + length] for at in range(num_windows)]
    end = (num_windows - 1) * hop + length if num_windows else 0
    if remainder == "pad" and end < num_samples and num_windows * hop < num_samples:
        windows.append(fit_length(signal[:, num_windows * hop :], length, limits))
    if not windows:
        raise SampleError(
            "transform",
            f"{num_samples:,} samples are shorter than one window of {length:,}; set remainder to pad",
        )
    return tuple(windows)


def _check_windows(signal: Array, num_windows: int, length: int, hop: int, limits: Limits) -> None:
    """All windows of a row are made at once: one second of every sample of a minute at 8 kHz are 14 GiB."""
    num_bytes = num_windows * (length * signal.shape[0] * signal.itemsize + WINDOW_BYTES)
    if num_bytes > limits.max_sample_bytes:
        raise SampleError(
            "transform",
            f"{num_windows:,} windows of {length:,}, one every {hop:,}, take {bytes_text(num_bytes)} together; "
            f"max_sample_bytes is {bytes_text(limits.max_sample_bytes)}. Raise hop, or max_sample_bytes",
        )


def fit_length(signal: Array, length: int, limits: Limits, how: str = "trim_pad") -> Array:
    """The signal with `length` samples: cut or zero-padded at its end, or stretched (`resample`).

    Raises:
        SampleError: that many are more than a sample may have.
    """
    num_samples = signal.shape[1]
    if how == "resample":
        return resample(signal, num_samples, length, limits)
    if num_samples >= length:
        return signal[:, :length]
    if length > _most_samples(signal, limits):
        raise SampleError(
            "transform",
            f"a length of {length:,} is more than max_sample_bytes {limits.max_sample_bytes:,} holds",
        )
    padded = np.zeros((signal.shape[0], length), signal.dtype)  # 2 us; np.pad takes 20
    padded[:, :num_samples] = signal
    return padded
