"""Rows gathered past the CPU's caches: for batches that would not be in them any more when they are used.

An ordinary store reads the line that it overwrites first. A streaming one does not, which saves a third of the
memory's traffic. Nothing is checked here: addresses and sizes are up to the caller.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import raw_memcpy
from numba.extending import intrinsic

from flatout.compiled import compiled
from flatout.types import Array

LINE_BYTES = 64
"""Of a cache line, which streaming stores fill as a whole."""


@intrinsic  # type: ignore[untyped-decorator]
def _stream_line(typing_context: Any, to: Any, source: Any) -> Any:
    """A line to an address that is a multiple of lines."""

    def generate(context: Any, builder: Any, signature: Any, addresses: Any) -> Any:
        line = ir.VectorType(ir.IntType(64), LINE_BYTES // 8)
        to, source = (builder.inttoptr(address, line.as_pointer()) for address in addresses)
        stored = builder.store(builder.load(source, align=1), to, align=LINE_BYTES)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def _copy(typing_context: Any, to: Any, source: Any, num_bytes: Any) -> Any:
    """Bytes from anywhere to anywhere."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *addresses, num_bytes = arguments
        to, source = (builder.inttoptr(address, ir.IntType(8).as_pointer()) for address in addresses)
        raw_memcpy(builder, to, source, num_bytes, 1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def _finish(typing_context: Any) -> Any:
    """Streaming stores may arrive out of order; after this all have."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@compiled
def gather(table: int, row_bytes: int, places: Array, to: int) -> None:
    """Copy the rows at these places (int64) of the table at an address, one behind the other, to another."""
    for place in places:
        source, stop = table + place * row_bytes, to + row_bytes
        head = min(-to % LINE_BYTES, row_bytes)
        _copy(to, source, head)
        to, source = to + head, source + head
        while to + LINE_BYTES <= stop:
            _stream_line(to, source)
            to, source = to + LINE_BYTES, source + LINE_BYTES
        _copy(to, source, stop - to)
        to = stop
    _finish()
