"""Loops over volumes that are seen through a warp, compiled by Numba: NumPy arrays in, rows of `made` filled.

A picture is a volume of one layer. `values` are those of a batch of `shape` (B, C, D, H, W), `made` those of
one of `new_shape`, each as one long row; a row to be made is a line along the last axis, counted over
samples, layers, lines. `matrix` leads from a place of the output, plus its displacement `moved` (of no
samples: none), to a place of the input, which may lie anywhere. Indices are unsigned numbers, which Numba
does not count from the end: half the time for a picture.

Between neighbours: where the values come from is found for some of a row at a time and without a branch, in one
piece of memory whose parts lie at known distances, so that the compiler uses vectors and need not ask which
arrays overlap. Two neighbours along the last axis lie side by side and come by one load; the four pairs of a
volume are weighed in vectors of four numbers.
The nearest: the part of a row that surely comes from inside is done without looking at bounds.

All in one file: Numba looks at no other to tell whether what it keeps on disk is up to date.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from flatout.compiled import compiled
from flatout.types import Array

Shape = tuple[int, int, int, int, int]
Row = tuple[int, int, int]
"""Sample, layer, line."""
Span = tuple[int, int]
Place = tuple[Any, Any, Any]

_ZERO, _HALF, _ONE = (np.float32(number) for number in (0.0, 0.5, 1.0))
_VALUE_BYTES = 4
_TILE = 64
"""Values of a row that are located at a time: three parts of so many numbers for the axes, one for what zeros
beyond the border leave."""
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
    active: Array,
    stays: bool,
    is_border: bool,
    made: Array,
    new_shape: Shape,
    first_row: int,
    last_row: int,
) -> None:
    """float32: between the neighbours; outside is zero, or the border's nearest. Samples that are not active
    stay, or the nearest is taken. The last axis of the input has two values at least.
    """
    num, volume, new_volume = new_shape[4], _volume(shape), _volume(new_shape)
    layer, line = _steps(shape)
    tile, index = np.empty(4 * _TILE, np.float32), np.empty(_TILE, np.int32)
    for number in range(first_row, last_row):
        row = _row(new_shape, number)
        if not active[row[0]] and stays:
            _keep_row(values, made, shape, row)
            continue
        if not active[row[0]]:
            _fill_nearest(values, shape, matrix, moved, is_border, made, new_shape, row)
            continue
        for start in range(0, num, _TILE):
            count = min(num - start, _TILE)
            _fill_places(matrix, row, start, count, tile)
            if moved.shape[0] > 0:
                _move_places(matrix, moved, row, start, count, tile)
            if not is_border:
                _fade(shape, count, tile)
            _locate(shape, count, tile, index)
            source = values.ctypes.data + row[0] * shape[1] * volume * _VALUE_BYTES
            target = _index(new_shape, row[0], row[1], row[2], start)
            for _ in range(shape[1]):
                if shape[2] == 1:
                    _fill_flat(source, line, count, tile, index, made, target)
                else:
                    _fill_deep(source, layer, line, count, tile, index, made, target)
                if not is_border:
                    _fade_out(count, tile, made, target)
                source += volume * _VALUE_BYTES
                target += np.uint64(new_volume)


@compiled
def _keep_row(values: Array, made: Array, shape: Shape, row: Row) -> None:
    for channel in range(shape[1]):
        first = int(_index(shape, row[0], row[1], row[2], 0)) + channel * _volume(shape)
        _copy(values[first : first + shape[4]], made[first : first + shape[4]])


@compiled
def _copy(values: Array, made: Array) -> None:
    for j in range(made.size):
        made[j] = values[j]


@compiled
def nearest(
    values: Array,
    shape: Shape,
    matrix: Array,
    moved: Array,
    is_border: bool,
    made: Array,
    new_shape: Shape,
    first_row: int,
    last_row: int,
) -> None:
    """Whole numbers: the nearest; outside is zero, or the border's nearest."""
    for number in range(first_row, last_row):
        _fill_nearest(values, shape, matrix, moved, is_border, made, new_shape, _row(new_shape, number))


@compiled
def _fill_nearest(
    values: Array,
    shape: Shape,
    matrix: Array,
    moved: Array,
    is_border: bool,
    made: Array,
    new_shape: Shape,
    row: Row,
) -> None:
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
    volume, new_volume = np.uint64(_volume(shape)), np.uint64(_volume(new_shape))
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
        value = values[source + np.uint64(c * _volume(shape))] if is_there else 0
        made[target + np.uint64(c * _volume(new_shape))] = value


@compiled
def _fill_places(matrix: Array, row: Row, start: int, count: int, tile: Array) -> None:
    """Where values of a row come from, along each axis of the input."""
    z_line, y_line, x_line = _line(matrix, row, 0), _line(matrix, row, 1), _line(matrix, row, 2)
    z_step, y_step, x_step = matrix[row[0], 0, 2], matrix[row[0], 1, 2], matrix[row[0], 2, 2]
    for j in range(count):
        at = np.float32(np.int32(start + j))
        tile[j] = z_line + z_step * at
        tile[_TILE + j] = y_line + y_step * at
        tile[2 * _TILE + j] = x_line + x_step * at


@compiled
def _move_places(matrix: Array, moved: Array, row: Row, start: int, count: int, tile: Array) -> None:
    """The same with the displacement of each."""
    for axis in range(3):
        for other in range(3):
            along = moved[row[0], other, row[1], row[2], start : start + count]
            _shift(matrix[row[0], axis, other], along, tile[axis * _TILE : axis * _TILE + count])


@compiled
def _shift(factor: Any, moved: Array, place: Array) -> None:
    for j in range(place.size):
        place[j] += factor * moved[j]


@compiled
def _locate(shape: Shape, count: int, tile: Array, index: Array) -> None:
    """Places in; for each the `index` of the first neighbour, and in its place the share of the second, out."""
    layer, line = _steps(shape)
    for j in range(count):
        z, w = _first_of_two(tile[j], shape[2])
        y, v = _first_of_two(tile[_TILE + j], shape[3])
        x, u = _first_of_two(tile[2 * _TILE + j], shape[4])
        tile[j], tile[_TILE + j], tile[2 * _TILE + j] = w, v, u
        index[j] = z * np.int32(layer) + y * np.int32(line) + x


@compiled
def _first_of_two(place: Any, size: int) -> Any:
    """The first of two neighbours, and the share of the second.

    From outside comes the border's nearest. The second is always there: the last value is the second of the
    last two, with a share of 1.
    """
    at = place if place > _ZERO else _ZERO  # the first if it is no number
    at = at if at < np.float32(size - 1) else np.float32(size - 1)
    first, last = np.int32(at), np.int32(max(size - 2, 0))
    first = first if first < last else last
    return first, at - np.float32(first)


@compiled
def _fade(shape: Shape, count: int, tile: Array) -> None:
    """What zeros beyond the border leave of the border's nearest."""
    for j in range(count):
        z, y, x = tile[j], tile[_TILE + j], tile[2 * _TILE + j]
        tile[3 * _TILE + j] = _rest(z, shape[2]) * _rest(y, shape[3]) * _rest(x, shape[4])


@compiled
def _rest(place: Any, size: int) -> Any:
    top = np.float32(size - 1)
    beyond = place - top if place > top else -place
    share = _ONE if beyond <= _ZERO else _ONE - beyond
    return share if share > _ZERO else _ZERO  # nothing if it is no number


@compiled
def _fill_deep(
    source: int, layer: int, line: int, count: int, tile: Array, index: Array, made: Array, target: Any
) -> None:
    """Between the eight neighbours, each within the channel at this address."""
    down, below = layer * _VALUE_BYTES, line * _VALUE_BYTES
    for j in range(count):
        at = source + index[j] * _VALUE_BYTES
        w, v, u = tile[j], tile[_TILE + j], tile[2 * _TILE + j]
        made[target + np.uint64(j)] = _of_four_pairs(at, at + below, at + down, at + down + below, w, v, u)


@compiled
def _fill_flat(source: int, line: int, count: int, tile: Array, index: Array, made: Array, target: Any) -> None:
    """Between the four neighbours of a picture."""
    for j in range(count):
        at = source + index[j] * _VALUE_BYTES
        v, u = tile[_TILE + j], tile[2 * _TILE + j]
        made[target + np.uint64(j)] = _of_two_pairs(at, at + line * _VALUE_BYTES, v, u)


@compiled
def _fade_out(count: int, tile: Array, made: Array, target: Any) -> None:
    """Zeros from outside, whatever the border's nearest was."""
    for j in range(count):
        left = tile[3 * _TILE + j]
        made[target + np.uint64(j)] = made[target + np.uint64(j)] * left if left > _ZERO else _ZERO


@compiled
def _steps(shape: Shape) -> Any:
    """Values to the next layer and to the next line, where there is one."""
    return shape[3] * shape[4] if shape[2] > 1 else 0, shape[4] if shape[3] > 1 else 0


def _weighed(builder: Any, first: Any, second: Any, share: Any, one: Any) -> Any:
    """Exactly the second for a share of 1, whatever the first is: it is what lies beside the border's nearest.
    A product and its sum may be one instruction."""
    apart = builder.fmul(builder.fsub(second, first), share, flags=["contract"])
    between = builder.fadd(first, apart, flags=["contract"])
    return builder.select(builder.fcmp_ordered("==", share, one), second, between)


def _pair_at(builder: Any, address: Any) -> Any:
    pair = ir.VectorType(ir.FloatType(), 2)
    return builder.load(builder.inttoptr(address, pair.as_pointer()), align=_VALUE_BYTES)


def _spread(builder: Any, number: Any, count: int) -> Any:
    alone = builder.insert_element(
        ir.Constant(ir.VectorType(ir.FloatType(), count), ir.Undefined), number, ir.IntType(32)(0)
    )
    return builder.shuffle_vector(alone, alone, _lanes(*[0] * count))


def _lanes(*numbers: int) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(numbers)), list(numbers))


def _ones(count: int) -> Any:
    return ir.Constant(ir.VectorType(ir.FloatType(), count), [1.0] * count)


def _of_pair(builder: Any, pair: Any, share: Any) -> Any:
    first, second = (builder.extract_element(pair, ir.IntType(32)(at)) for at in range(2))
    return _weighed(builder, first, second, share, ir.FloatType()(1.0))


@intrinsic  # type: ignore[untyped-decorator]
def _of_four_pairs(
    typing_context: Any, a: Any, below_a: Any, b: Any, below_b: Any, w: Any, v: Any, u: Any
) -> Any:
    """Pairs at four addresses: of a layer `a` and the next, `b`, each at a line and the next; one value."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *addresses, w, v, u = arguments
        a, below_a, b, below_b = (_pair_at(builder, address) for address in addresses)
        upper = builder.shuffle_vector(a, b, _lanes(0, 1, 2, 3))
        lower = builder.shuffle_vector(below_a, below_b, _lanes(0, 1, 2, 3))
        both = _weighed(builder, upper, lower, _spread(builder, v, 4), _ones(4))
        first, second = (builder.shuffle_vector(both, both, _lanes(at, at + 1)) for at in (0, 2))
        pair = _weighed(builder, first, second, _spread(builder, w, 2), _ones(2))
        return _of_pair(builder, pair, u)

    return types.float32(*[types.int64] * 4, *[types.float32] * 3), generate


@intrinsic  # type: ignore[untyped-decorator]
def _of_two_pairs(typing_context: Any, upper: Any, lower: Any, v: Any, u: Any) -> Any:
    """Pairs at two addresses, of a line and the next; one value."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *addresses, v, u = arguments
        upper, lower = (_pair_at(builder, address) for address in addresses)
        return _of_pair(builder, _weighed(builder, upper, lower, _spread(builder, v, 2), _ones(2)), u)

    return types.float32(*[types.int64] * 2, *[types.float32] * 2), generate


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
    return shape[2] * shape[3] * shape[4]


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
