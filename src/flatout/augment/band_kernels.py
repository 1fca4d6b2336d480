"""A band of frequencies out of each row, eight rows at once: there, cleared, back. Nothing is checked here."""

from __future__ import annotations

from typing import Any

import numpy as np

from flatout.augment.fourier_kernels import LINE_BYTES, factor, get, inlined, put, times, transform
from flatout.augment.vectors import NUM_LANES, load, load_turned, outside, spread, store_turned
from flatout.compiled import compiled
from flatout.types import Array

_PLACES = NUM_LANES // 2
"""Complex numbers in a vector of a row's own numbers."""
_PAIR_BYTES = 8


@compiled
def remove_bands(
    x: Array,
    chosen: Array,
    start: Array,
    width: Array,
    radices: Array,
    places: Array,
    twiddles: Array,
    turns: Array,
    out: Array,
    lines: Array,
    first: int,
    last: int,
) -> None:
    """(R, T): blocks first .. last - 1 of the chosen rows without their band of the real spectrum.

    Args:
        chosen: (N,) int64: numbers of rows; eight of them are a block.
        start, width: (N,) int64: the bins that each of them loses.
        radices, places, twiddles, turns: the `Plan` for rows of this length.
        lines: (2, T // 2, 2 x lanes) float32 to work in.
    """
    num, row_bytes = places.size, x.shape[1] * x.itemsize
    there, back = lines[0].ctypes.data, lines[1].ctypes.data
    begin, end = np.empty(NUM_LANES, np.float32), np.empty(NUM_LANES, np.float32)
    sources, targets = np.empty(NUM_LANES, np.int64), np.empty(NUM_LANES, np.int64)
    for block in range(first, last):
        for lane in range(NUM_LANES):
            at = min(block * NUM_LANES + lane, chosen.size - 1)  # the last one again where there are no more
            begin[lane], end[lane] = start[at], start[at] + width[at]
            sources[lane] = x.ctypes.data + chosen[at] * row_bytes
            targets[lane] = out.ctypes.data + chosen[at] * row_bytes
        _collect(sources, places, there)
        transform(there, radices, twiddles, num)
        _clear(there, back, places, turns, begin.ctypes.data, end.ctypes.data)
        transform(back, radices, twiddles, num)
        _distribute(back, num, targets)


@compiled
def _collect(rows: Array, places: Array, lines: int) -> None:
    """Eight rows, by their addresses, side by side in the order that transforms begin with."""
    num = places.size
    for first in range(0, num, _PLACES):
        at = min(first, num - _PLACES)  # some twice rather than beyond the end
        vectors = load_turned(rows.ctypes.data, at * _PAIR_BYTES)
        put(lines + places[at] * LINE_BYTES, vectors[0], vectors[1])
        put(lines + places[at + 1] * LINE_BYTES, vectors[2], vectors[3])
        put(lines + places[at + 2] * LINE_BYTES, vectors[4], vectors[5])
        put(lines + places[at + 3] * LINE_BYTES, vectors[6], vectors[7])


@compiled
def _distribute(lines: int, num: int, rows: Array) -> None:
    """The reverse, out of lines whose halves are exchanged."""
    for first in range(0, num, _PLACES):
        at = min(first, num - _PLACES)
        line = lines + at * LINE_BYTES
        i0, r0 = get(line)
        i1, r1 = get(line + LINE_BYTES)
        i2, r2 = get(line + 2 * LINE_BYTES)
        i3, r3 = get(line + 3 * LINE_BYTES)
        store_turned(rows.ctypes.data, at * _PAIR_BYTES, (r0, i0, r1, i1, r2, i2, r3, i3))


@compiled
def _clear(there: int, back: int, places: Array, turns: Array, begin: int, end: int) -> None:
    """Spectra of half the length in, the same without their bands out, in the order that transforms begin with.

    Frequencies k and num - k of the half are what k and num - k of the whole are made of. The halves of a line
    are exchanged on the way, by which the next transform becomes the inverse, and each number is divided by
    what two transforms multiply it with.
    """
    num = places.size
    low, high, share = load(begin), load(end), spread(np.float32(0.25 / num))
    for bin_ in range(num // 2 + 1):
        other = num - bin_ if bin_ else 0
        ar, ai = get(there + bin_ * LINE_BYTES)
        br, bi = get(there + other * LINE_BYTES)
        cos, sin = factor(turns, bin_)
        even_r, even_i = ar + br, ai - bi
        odd_r, odd_i = times(ai + bi, br - ar, cos, sin)
        keep, keep_other = _kept(bin_, low, high, share), _kept(num - bin_, low, high, share)
        xr, xi = keep * (even_r + odd_r), keep * (even_i + odd_i)
        yr, yi = keep_other * (even_r - odd_r), keep_other * (even_i - odd_i)
        even_r, even_i = xr + yr, xi + yi
        tr, ti = xr - yr, xi - yi
        odd_r, odd_i = tr * cos + ti * sin, ti * cos - tr * sin
        put(back + places[other] * LINE_BYTES, odd_r - even_i, even_r + odd_i)
        put(back + places[bin_] * LINE_BYTES, even_i + odd_r, even_r - odd_i)


@inlined
def _kept(number: Any, low: Any, high: Any, share: Any) -> Any:
    """What each row keeps of a bin."""
    return share * outside(spread(np.float32(number)), low, high)
