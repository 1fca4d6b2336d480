"""Loops over volumes that are seen through a warp, compiled by Numba: NumPy arrays in, rows of `made` filled.

A picture is a volume of one layer. `values` are those of a batch of `shape` (B, C, D, H, W), `made` those of
one of `new_shape`, each as one long row; a row to be made is a line along the last axis, counted over
samples, layers, lines. `matrix` leads from a place of the output, plus its displacement `moved` (of no
samples: none), to a place of the input, which may lie anywhere. Indices are unsigned numbers, which Numba
does not count from the end: half the time for a picture.

Between neighbours: where the values of a row come from is found for the whole row first, an axis at a time
and without a branch, so that the compiler uses vectors. To fetch the neighbours in vectors, too, gained an
eighth of their time, and needs promises about memory that Numba has no option for.
The nearest: the part of a row that surely comes from inside is done without looking at bounds.

All in one file: Numba looks at no other to tell whether what it keeps on disk is up to date.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flatout.compiled import compiled
from flatout.types import Array

Shape = tuple[int, int, int, int, int]
Row = tuple[int, int, int]
"""Sample, layer, line."""
Span = tuple[int, int]
Place = tuple[Any, Any, Any]

_ZERO, _HALF, _ONE = (np.float32(number) for number in (0.0, 0.5, 1.0))
_NOTHING = np.int32(0)
_SAFE = 0.01
"""Kept from the border, in values, beside what the position may be rounded by."""
_ROUNDING = 1e-6
"""Of the numbers that a position is the sum of: 16 times what float32 rounds by."""
_FAR = 1e30


@compiled
def linear(
    values: Array,
    shape: Shape,
    matrix: Array,
    moved: Array,
    wanted: Array,
    is_border: bool,
    made: Array,
    new_shape: Shape,
    first_row: int,
    last_row: int,
) -> None:
    """float32, of the samples wanted: between the neighbours; outside is zero, or the border's nearest."""
    num = new_shape[4]
    counts = np.arange(num).astype(np.float32)
    place, left, index = np.empty(num, np.float32), np.empty(num, np.float32), np.empty(num, np.int32)
    w, v, u = np.empty(num, np.float32), np.empty(num, np.float32), np.empty(num, np.float32)
    layer, line, step = np.empty(num, np.int32), np.empty(num, np.int32), np.empty(num, np.int32)
    volume, new_volume = shape[2] * shape[3] * shape[4], new_shape[2] * new_shape[3] * new_shape[4]
    for number in range(first_row, last_row):
        row = _row(new_shape, number)
        if not wanted[row[0]]:
            continue
        for j in range(num):
            index[j], left[j] = 0, _ONE
        _fill_places(matrix, moved, row, 0, counts, place)
        _locate(place, shape[2], shape[3] * shape[4], index, w, layer)
        if not is_border:
            _fade(place, shape[2], left)
        _fill_places(matrix, moved, row, 1, counts, place)
        _locate(place, shape[3], shape[4], index, v, line)
        if not is_border:
            _fade(place, shape[3], left)
        _fill_places(matrix, moved, row, 2, counts, place)
        _locate(place, shape[4], 1, index, u, step)
        if not is_border:
            _fade(place, shape[4], left)
        for channel in range(row[0] * shape[1], (row[0] + 1) * shape[1]):
            source = values[channel * volume : (channel + 1) * volume]
            first = channel * new_volume + (row[1] * new_shape[3] + row[2]) * num
            target = made[first : first + num]
            if shape[2] == 1:
                _fill_flat(source, index, v, u, line, step, target)
            else:
                _fill_deep(source, index, w, v, u, layer, line, step, target)
            if not is_border:
                _fade_out(left, target)


@compiled
def nearest(
    values: Array,
    shape: Shape,
    matrix: Array,
    moved: Array,
    wanted: Array,
    is_border: bool,
    made: Array,
    new_shape: Shape,
    first_row: int,
    last_row: int,
) -> None:
    """Whole numbers, of the samples wanted: the nearest; outside is zero, or the border's nearest."""
    for number in range(first_row, last_row):
        row = _row(new_shape, number)
        if not wanted[row[0]]:
            continue
        span = _span(shape, matrix, moved, row, new_shape[4], -0.5, -0.5)
        _nearest_part(values, shape, matrix, made, new_shape, row, span)
        for j in range(new_shape[4]):
            if j < span[0] or j >= span[1]:
                place = _place(matrix, moved, row, j)
                _nearest_at(values, shape, place, is_border, made, new_shape, row, j)


@compiled
def _nearest_part(
    values: Array, shape: Shape, matrix: Array, made: Array, new_shape: Shape, row: Row, span: Span
) -> None:
    """Part of a row that comes from inside; with whole steps a copy with a stride."""
    z_line, y_line, x_line = _line(matrix, row, 0), _line(matrix, row, 1), _line(matrix, row, 2)
    z_step, y_step, x_step = matrix[row[0], 0, 2], matrix[row[0], 1, 2], matrix[row[0], 2, 2]
    is_whole = z_step == np.rint(z_step) and y_step == np.rint(y_step) and x_step == np.rint(x_step)
    stride = (int(z_step) * shape[3] + int(y_step)) * shape[4] + int(x_step)
    volume, new_volume = _volume(shape), _volume(new_shape)
    for j in range(span[0], span[1]):
        at = np.float32(j)
        z0 = int(z_line + z_step * at + _HALF)
        y0 = int(y_line + y_step * at + _HALF)
        x0 = int(x_line + x_step * at + _HALF)
        source, target = _index(shape, row[0], z0, y0, x0), _index(new_shape, row[0], row[1], row[2], j)
        for _ in range(shape[1]):
            for ahead in range(span[1] - span[0] if is_whole else 1):
                made[target + np.uint64(ahead)] = values[source + np.uint64(ahead * stride)]
            source += volume
            target += new_volume
        if is_whole:
            return


@compiled
def _nearest_at(
    values: Array, shape: Shape, place: Place, is_border: bool, made: Array, new_shape: Shape, row: Row, j: int
) -> None:
    """One place, wherever it comes from."""
    z0, _ = _split(place[0] + _HALF, shape[2], is_border)
    y0, _ = _split(place[1] + _HALF, shape[3], is_border)
    x0, _ = _split(place[2] + _HALF, shape[4], is_border)
    is_there = 0 <= z0 < shape[2] and 0 <= y0 < shape[3] and 0 <= x0 < shape[4]
    source = _index(shape, row[0], z0, y0, x0) if is_there else np.uint64(0)
    target = _index(new_shape, row[0], row[1], row[2], j)
    for c in range(shape[1]):
        value = values[source + np.uint64(c) * _volume(shape)] if is_there else 0
        made[target + np.uint64(c) * _volume(new_shape)] = value


@compiled
def _fill_places(matrix: Array, moved: Array, row: Row, axis: int, counts: Array, place: Array) -> None:
    """Where the values of a row come from, along one axis of the input; `counts` are 0, 1, 2, ..."""
    line, step = _line(matrix, row, axis), matrix[row[0], axis, 2]
    for j in range(place.size):
        place[j] = line + step * counts[j]
    if moved.shape[0] > 0:
        for other in range(3):
            _shift(matrix[row[0], axis, other], moved[row[0], other, row[1], row[2]], place)


@compiled
def _shift(factor: Any, moved: Array, place: Array) -> None:
    for j in range(place.size):
        place[j] += factor * moved[j]


@compiled
def _locate(place: Array, size: int, factor: Any, index: Array, share: Array, step: Array) -> None:
    """One axis of a row: adds to each `index`, fills how far the next neighbour is and its share.

    From outside comes the border's nearest. With one array more the compiler would not use vectors: it would
    have to compare too many of them for overlaps.
    """
    top, last, factor = np.float32(size - 1), np.int32(size - 1), np.int32(factor)
    for j in range(place.size):
        at = place[j] if place[j] > _ZERO else _ZERO  # the first if it is no number
        at = at if at < top else top
        whole = np.int32(at)
        share[j] = at - np.float32(whole)
        index[j] += whole * factor
        step[j] = factor if whole < last else _NOTHING


@compiled
def _fade(place: Array, size: int, left: Array) -> None:
    """One axis of a row: what zeros beyond the border leave of the border's nearest, multiplied to `left`."""
    top = np.float32(size - 1)
    for j in range(place.size):
        beyond = place[j] - top if place[j] > top else -place[j]
        share = _ONE if beyond <= _ZERO else _ONE - beyond
        left[j] *= share if share > _ZERO else _ZERO  # nothing if it is no number


@compiled
def _fill_deep(
    values: Array,
    index: Array,
    w: Array,
    v: Array,
    u: Array,
    layer: Array,
    line: Array,
    step: Array,
    made: Array,
) -> None:
    """Between the eight neighbours, each within one channel's `values`."""
    for j in range(made.size):
        upper = index[j]
        lower = upper + layer[j]
        value = _between(values, upper, line[j], step[j], v[j], u[j])
        made[j] = value + (_between(values, lower, line[j], step[j], v[j], u[j]) - value) * w[j]


@compiled
def _fill_flat(values: Array, index: Array, v: Array, u: Array, line: Array, step: Array, made: Array) -> None:
    """Between the four neighbours of a picture."""
    for j in range(made.size):
        made[j] = _between(values, index[j], line[j], step[j], v[j], u[j])


@compiled
def _between(values: Array, at: Any, line: Any, step: Any, v: Any, u: Any) -> Any:
    """Four neighbours of one layer."""
    below = at + line
    upper, lower = values[np.uint32(at)], values[np.uint32(below)]
    upper += (values[np.uint32(at + step)] - upper) * u
    lower += (values[np.uint32(below + step)] - lower) * u
    return upper + (lower - upper) * v


@compiled
def _fade_out(left: Array, made: Array) -> None:
    """Zeros from outside, whatever the border's nearest was."""
    for j in range(made.size):
        made[j] = made[j] * left[j] if left[j] > _ZERO else _ZERO


@compiled
def _row(shape: Shape, number: int) -> Row:
    plane = number // shape[3]
    return plane // shape[2], plane % shape[2], number % shape[3]


@compiled
def _index(shape: Shape, n: Any, z: Any, y: Any, x: Any) -> Any:
    """Where a value of the first channel is."""
    return np.uint64(((n * shape[1] * shape[2] + z) * shape[3] + y) * shape[4] + x)


@compiled
def _volume(shape: Shape) -> Any:
    """Values of a channel."""
    return np.uint64(shape[2] * shape[3] * shape[4])


@compiled
def _split(place: Any, size: int, is_border: bool) -> Any:
    """Whole number and share; no further out than one value, so that it is an integer whatever it was."""
    if is_border:
        place = min(max(place, _ZERO), np.float32(size - 1))
    place = min(max(place, -_ONE), np.float32(size))
    whole = np.floor(place)
    return int(whole), place - whole


@compiled
def _place(matrix: Array, moved: Array, row: Row, j: int) -> Place:
    """Where a value of the output comes from."""
    n, at = row[0], np.float32(j)
    z = _line(matrix, row, 0) + matrix[n, 0, 2] * at
    y = _line(matrix, row, 1) + matrix[n, 1, 2] * at
    x = _line(matrix, row, 2) + matrix[n, 2, 2] * at
    if moved.shape[0] > 0:
        a, b, c = moved[n, 0, row[1], row[2], j], moved[n, 1, row[1], row[2], j], moved[n, 2, row[1], row[2], j]
        z += matrix[n, 0, 0] * a + matrix[n, 0, 1] * b + matrix[n, 0, 2] * c
        y += matrix[n, 1, 0] * a + matrix[n, 1, 1] * b + matrix[n, 1, 2] * c
        x += matrix[n, 2, 0] * a + matrix[n, 2, 1] * b + matrix[n, 2, 2] * c
    return z, y, x


@compiled
def _line(matrix: Array, row: Row, axis: int) -> Any:
    """Where a row begins, along one axis of the input."""
    n = row[0]
    return (
        matrix[n, axis, 0] * np.float32(row[1]) + matrix[n, axis, 1] * np.float32(row[2]) + matrix[n, axis, 3]
    )


@compiled
def _span(shape: Shape, matrix: Array, moved: Array, row: Row, num: int, low: float, high: float) -> Span:
    """First and last of the places in a row that surely lie from `low` to the size + `high` on each axis."""
    first, last = 0.0, float(num) if moved.shape[0] == 0 else 0.0
    for axis in range(3):
        line, step = float(_line(matrix, row, axis)), float(matrix[row[0], axis, 2])
        size = shape[2] if axis == 0 else shape[3] if axis == 1 else shape[4]
        margin = _SAFE + _ROUNDING * (abs(line) + abs(step) * num)
        least, most = low + margin, size + high - margin
        if abs(step) * num < _SAFE:
            if not least + _SAFE <= line <= most - _SAFE:
                last = 0.0
        elif not (least <= most and abs(line) < _FAR and abs(step) < _FAR):
            last = 0.0
        else:
            one, other = (least - line) / step, (most - line) / step
            first, last = max(first, np.ceil(min(one, other))), min(last, np.floor(max(one, other)) + 1.0)
    if last > first:
        return int(first), int(last)
    return 0, 0
