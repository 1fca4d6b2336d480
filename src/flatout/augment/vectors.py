"""A Numba type of eight numbers that are reckoned with at once: one CPU instruction instead of eight.

Numba's own loops become vectors only where the compiler can prove that memory does not overlap; here it is
up to whoever writes them. Loads and stores check nothing and take any address.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.extending import intrinsic, overload, register_model

NUM_LANES = 8
"""Numbers in a vector: as wide as AVX2's."""
VECTOR_BYTES = 4 * NUM_LANES
_FLOATS = ir.VectorType(ir.FloatType(), NUM_LANES)


class Vector(types.Type):  # type: ignore[misc]
    """Eight numbers of 32 bits."""

    def __init__(self) -> None:
        super().__init__(name="flatout.Vector")


VECTOR = Vector()


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _FLOATS)


@intrinsic  # type: ignore[untyped-decorator]
def load(typing_context: Any, address: Any) -> Any:
    """The eight numbers at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], _FLOATS.as_pointer()), align=4)

    return VECTOR(types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def store(typing_context: Any, address: Any, vector: Any) -> Any:
    """Eight numbers to an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], _FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.intp, VECTOR), generate


@intrinsic  # type: ignore[untyped-decorator]
def spread(typing_context: Any, number: Any) -> Any:
    """One number eight times."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        empty = ir.Constant(_FLOATS, ir.Undefined)
        first = builder.insert_element(empty, arguments[0], ir.Constant(ir.IntType(32), 0))
        places = ir.Constant(ir.VectorType(ir.IntType(32), NUM_LANES), [0] * NUM_LANES)
        return builder.shuffle_vector(first, empty, places)

    return VECTOR(types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def outside(typing_context: Any, number: Any, start: Any, end: Any) -> Any:
    """1 where a number is less than `start` or not less than `end`, else 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, start, end = arguments
        is_before, is_behind = builder.fcmp_ordered("<", number, start), builder.fcmp_ordered(">=", number, end)
        is_outside = builder.or_(is_before, is_behind)
        one, zero = (ir.Constant(_FLOATS, [value] * NUM_LANES) for value in (1.0, 0.0))
        return builder.select(is_outside, one, zero)

    return VECTOR(VECTOR, VECTOR, VECTOR), generate


def _define(symbol: Callable[..., Any], instruction: str) -> None:
    """Have an operator on two vectors become one instruction; products may be added without being rounded."""

    @intrinsic  # type: ignore[untyped-decorator]
    def calculate(typing_context: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, instruction)(*arguments, flags=("contract",))

        return VECTOR(VECTOR, VECTOR), generate

    @overload(symbol, strict=False)  # type: ignore[untyped-decorator]
    def resolve(a: Any, b: Any) -> Any:
        if isinstance(a, Vector) and isinstance(b, Vector):
            return lambda a, b: calculate(a, b)
        return None


_define(operator.add, "fadd")
_define(operator.sub, "fsub")
_define(operator.mul, "fmul")


def _turned(builder: Any, rows: list[Any]) -> list[Any]:
    """Eight vectors in, the first numbers of all of them as a vector, the second ones, and so on out."""
    lanes = range(NUM_LANES)
    for size in (1, 2, 4):  # squares of this size change sides, in all squares of twice the size
        low = [at + NUM_LANES * bool(at & size) - (at & size) for at in lanes]
        places = [
            ir.Constant(ir.VectorType(ir.IntType(32), NUM_LANES), [at + shift for at in low])
            for shift in (0, size)
        ]
        rows = [
            builder.shuffle_vector(rows[at & ~size], rows[at | size], places[bool(at & size)]) for at in lanes
        ]
    return rows


def _addresses(builder: Any, table: Any, offset: Any) -> list[Any]:
    """Of the vectors so many bytes behind the addresses in a table."""
    table = builder.inttoptr(table, ir.IntType(64).as_pointer())
    starts = [builder.load(builder.gep(table, [ir.Constant(ir.IntType(64), at)])) for at in range(NUM_LANES)]
    return [builder.inttoptr(builder.add(start, offset), _FLOATS.as_pointer()) for start in starts]


@intrinsic  # type: ignore[untyped-decorator]
def load_turned(typing_context: Any, table: Any, offset: Any) -> Any:
    """Eight numbers of each of eight rows, whose addresses are in a table: a vector for each place of a row."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows = [builder.load(address, align=4) for address in _addresses(builder, *arguments)]
        return context.make_tuple(builder, signature.return_type, _turned(builder, rows))

    return types.UniTuple(VECTOR, NUM_LANES)(types.intp, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_turned(typing_context: Any, table: Any, offset: Any, vectors: Any) -> Any:
    """The reverse of `load_turned`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table, offset, vectors = arguments
        columns = [builder.extract_value(vectors, at) for at in range(NUM_LANES)]
        for address, row in zip(_addresses(builder, table, offset), _turned(builder, columns), strict=True):
            builder.store(row, address, align=4)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.UniTuple(VECTOR, NUM_LANES)), generate
