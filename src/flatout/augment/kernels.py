"""Loops over the values of a batch in the host's memory, compiled by Numba: NumPy arrays in, `out` filled.

Each does in one pass what takes torch five to thirty, with the same arithmetic: shifts and masks are equal bit
for bit, noise to a few units in the last place. They release the interpreter's lock and start no threads.
Nothing is checked here: that arrays belong together is up to the caller, and `host.py` says who may call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flatout.compiled import compiled
from flatout.types import Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_S8, _S27, _S30, _S31, _S40 = (np.uint64(num_bits) for num_bits in (8, 27, 30, 31, 40))

_ONE, _TWO, _HALF, _ZERO = (np.float32(number) for number in (1.0, 2.0, 0.5, 0.0))
_ROOT_2 = np.float32(2.0**0.5)
_LN_2 = np.float32(np.log(2.0))
_LOG_3, _LOG_5, _LOG_7, _LOG_9 = (np.float32(1.0 / odd) for odd in (3, 5, 7, 9))
_SIN_3, _SIN_5, _SIN_7, _SIN_9 = (np.float32(1.0 / number) for number in (-6, 120, -5040, 362880))
_COS_2, _COS_4, _COS_6, _COS_8 = (np.float32(1.0 / number) for number in (-2, 24, -720, 40320))
_BLOCK = 512
"""Pairs of noise made at a time: 4 KB, which stay in the first cache."""
_RADIANS = np.float32(2.0 * np.pi / (1 << 24))


@compiled
def _mixed(number: Any) -> Any:
    """One number of `keys.mix`, on uint64."""
    number = number * _GOLDEN
    number = (number ^ (number >> _S30)) * _MULTIPLY_1
    number = (number ^ (number >> _S27)) * _MULTIPLY_2
    return number ^ (number >> _S31)


@compiled
def mix(numbers: Array, out: Array) -> None:
    """(N,) uint64: what `keys.mix` makes of each."""
    for at in range(numbers.size):
        out[at] = _mixed(numbers[at])


@compiled
def start(hashes: Array, stream: Any, out: Array) -> None:
    """(N,) uint64: the states of `keys.draw_keys`."""
    for at in range(hashes.size):
        out[at] = _mixed(_mixed(hashes[at]) ^ stream)


@compiled
def sequence(states: Array, first: Any, num_bits: Any, out: Array) -> None:
    """(N,) uint64 and (N, n): the highest bits of numbers first .. first + n - 1 of each state."""
    shift = np.uint64(64) - num_bits
    for row in range(out.shape[0]):
        for at in range(out.shape[1]):
            out[row, at] = _mixed(states[row] ^ (first + np.uint64(at))) >> shift


@compiled
def positions(states: Array, first: Any, first_draw: Any, num_bits: Any, out: Array, drawn: Array) -> None:
    """(B,) uint64 in; states of positions first .., (P, B), and the first draws of each, (P, B, n), out."""
    shift = np.uint64(64) - num_bits
    for place in range(out.shape[0]):
        for sample in range(out.shape[1]):
            state = _mixed(states[sample] ^ (first + np.uint64(place)))
            out[place, sample] = state
            for at in range(drawn.shape[2]):
                drawn[place, sample, at] = _mixed(state ^ (first_draw + np.uint64(at))) >> shift


@compiled
def copy(row: Array, out: Array) -> None:
    """A loop: to compile `out[:] = row` takes four seconds."""
    for at in range(row.size):
        out[at] = row[at]


@compiled
def scale(x: Array, active: Array, factor: Array, out: Array) -> None:
    """(B, N): each active sample times its factor."""
    for sample in range(x.shape[0]):
        own = factor[sample] if active[sample] else _ONE
        for at in range(x.shape[1]):
            out[sample, at] = x[sample, at] * own


@compiled
def roll(x: Array, active: Array, shift: Array, out: Array) -> None:
    """(B, C, T): each active sample later by its shift, circularly."""
    num_samples, num_channels, length = x.shape
    for sample in range(num_samples):
        first = shift[sample] % length if active[sample] else 0
        for channel in range(num_channels):
            for at in range(length - first):
                out[sample, channel, first + at] = x[sample, channel, at]
            for at in range(first):
                out[sample, channel, at] = x[sample, channel, length - first + at]


@compiled
def mask(x: Array, active: Array, start: Array, width: Array, out: Array) -> None:
    """(B, C, T): each active sample with its stretches, (B, n), zero."""
    num_samples, num_channels, length = x.shape
    for sample in range(num_samples):
        for channel in range(num_channels):
            copy(x[sample, channel], out[sample, channel])
            for number in range(start.shape[1] if active[sample] else 0):
                end = min(start[sample, number] + width[sample, number], length)
                for at in range(max(start[sample, number], 0), end):
                    out[sample, channel, at] = _ZERO


@compiled
def clear(spectrum: Array, start: Array, width: Array) -> None:
    """(B, C, F) complex64: the band of each sample, (B, 1), set to zero in place."""
    num_samples, num_channels, num_bins = spectrum.shape
    for sample in range(num_samples):
        first = max(start[sample, 0], 0)
        end = min(start[sample, 0] + width[sample, 0], num_bins)
        for channel in range(num_channels):
            for at in range(first, end):
                spectrum[sample, channel, at] = 0


@compiled
def add_noise(x: Array, active: Array, states: Array, std: Any, out: Array) -> None:
    """(B, N): each active sample with the normals of its state added, `std` times its own deviation.

    `out` may be `x`.
    """
    for sample in range(x.shape[0]):
        _keep(x[sample], out[sample])
        if active[sample]:
            _add_normals(states[sample], np.float32(_moments(x[sample])[1]) * std, out[sample])


@compiled
def straighten(
    x: Array,
    wanted: Array,
    factors: Array,
    shifts: Array,
    stds: Array,
    states: Array,
    out: Array,
    first_row: int,
    last_row: int,
) -> None:
    """(B, N): each wanted sample through curves, (n, B), one after another: what it differs from its mean by
    times a factor, plus a share of its deviation; then noise of its state, of such a share, too.

    `out` may be `x`. Samples that are not wanted come out as they are.
    """
    for sample in range(first_row, last_row):
        row = out[sample]
        _keep(x[sample], row)
        if not wanted[sample]:
            continue
        of_row = _moments(row)
        mean, deviation = np.float32(of_row[0]), np.float32(of_row[1])
        factor, shift = _ONE, _ZERO
        for curve in range(factors.shape[0]):
            own = factors[curve, sample]
            added = deviation * own * shifts[curve, sample]
            factor, shift = factor * own, shift * own + mean * (_ONE - own) + added
            mean, deviation = mean + added, deviation * own
        _stretch(factor, shift, row)
        if stds[sample] > _ZERO:
            _add_normals(states[sample], deviation * stds[sample], row)


@compiled
def mean_and_deviation(x: Array, out: Array, first_row: int, last_row: int) -> None:
    """(B, N) float32 in, (2, B) out."""
    for row in range(first_row, last_row):
        out[0, row], out[1, row] = _moments(x[row])


@compiled
def _keep(row: Array, out: Array) -> None:
    if row.ctypes.data != out.ctypes.data:
        copy(row, out)


@compiled
def _stretch(factor: Any, shift: Any, row: Array) -> None:
    """In place: one array cannot overlap with another, so that the compiler uses vectors."""
    for at in range(row.size):
        row[at] = row[at] * factor + shift


@compiled
def _add_normals(state: Any, level: Any, row: Array) -> None:
    """Blocks of noise are made apart: where memory may overlap, the compiler uses no vectors, which takes six
    times as long."""
    cosines, sines = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.float32)
    half = (row.size + 1) // 2
    for start in range(0, half, _BLOCK):
        end = min(start + _BLOCK, half)
        _fill_pairs(state, start, cosines[: end - start], sines[: end - start])
        _add(cosines, level, row[start:end])
        _add(sines, level, row[half + start : half + end])


@compiled
def _add(noise: Array, level: Any, row: Array) -> None:
    for at in range(row.size):
        row[at] += noise[at] * level


@compiled
def normals(states: Array, out: Array) -> None:
    """(B, N): the normals of each state; cosines go to the first half, sines to the second."""
    for sample in range(states.size):
        row = out[sample]
        half = (row.size + 1) // 2
        num_pairs = row.size - half
        _fill_pairs(states[sample], 0, row[:num_pairs], row[half:])
        if num_pairs < half:
            row[num_pairs], _ = _normal_pair(_mixed(states[sample] ^ np.uint64(num_pairs)))


@compiled
def _fill_pairs(state: Any, start: int, cosines: Array, sines: Array) -> None:
    """Pairs start .. of `draws.normals`."""
    for at in range(cosines.size):
        cosines[at], sines[at] = _normal_pair(_mixed(state ^ np.uint64(start + at)))


def _moments_of(row: Array) -> Any:
    """Mean and deviation in one pass, of what the values differ from the first by.

    In float64: sums of float32 would lose digits over long rows. The difference of the two squares loses no
    more than the number of values: the first is one of them, and that far from the mean it counts itself.
    """
    first = float(row[0]) if row.size > 0 else np.nan
    total, squares = 0.0, 0.0
    for at in range(row.size):
        beside = row[at] - first
        total += beside
        squares += beside * beside
    mean = total / row.size
    return first + mean, np.sqrt(max(squares / row.size - mean * mean, 0.0))


# Sums in any order, or the compiler may not use vectors: 8 times as fast.
_moments = compiled(_moments_of, fastmath={"reassoc", "nsz"})


@compiled
def _normal_pair(number: Any) -> Any:
    """64 random bits in, two normal numbers out: Box and Muller's formula with series for log, sine, cosine."""
    radius = np.sqrt(-_TWO * _log_share(np.int32(number >> _S40) + np.int32(1)))
    turn = np.int32(number >> _S8) & np.int32(0xFFFFFF)
    quarter = (turn + np.int32(1 << 21)) >> np.int32(22)
    angle = np.float32(turn - (quarter << np.int32(22))) * _RADIANS
    square = angle * angle
    sine = angle * (_ONE + square * (_SIN_3 + square * (_SIN_5 + square * (_SIN_7 + square * _SIN_9))))
    cosine = _ONE + square * (_COS_2 + square * (_COS_4 + square * (_COS_6 + square * _COS_8)))
    is_odd = (quarter & np.int32(1)) != 0
    x = sine if is_odd else cosine
    y = cosine if is_odd else sine
    x = -x if ((quarter + np.int32(1)) & np.int32(2)) != 0 else x
    y = -y if (quarter & np.int32(2)) != 0 else y
    return radius * x, radius * y


@compiled
def _log_share(count: Any) -> Any:
    """log(count / 2**24) for 1 <= count <= 2**24: exponent and mantissa apart, the latter near 1."""
    bits = np.float32(count).view(np.int32)
    exponent = (bits >> np.int32(23)) - np.int32(127 + 24)
    mantissa = np.int32((bits & np.int32(0x7FFFFF)) | np.int32(0x3F800000)).view(np.float32)
    is_large = mantissa > _ROOT_2
    mantissa = mantissa * _HALF if is_large else mantissa
    exponent = exponent + np.int32(1) if is_large else exponent
    s = (mantissa - _ONE) / (mantissa + _ONE)
    square = s * s
    series = _ONE + square * (_LOG_3 + square * (_LOG_5 + square * (_LOG_7 + square * _LOG_9)))
    return np.float32(exponent) * _LN_2 + _TWO * s * series
