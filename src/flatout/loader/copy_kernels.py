"""Rows copied by compiled code: past the CPU's caches where they are many, by threads without an interpreter.

**Streaming.** An ordinary store reads the line that it overwrites first. A streaming one does not, which saves
a third of the memory's traffic for batches that would not be in the caches any more when they are used.

**Lanes.** Several threads claim units of rows by a shared counter and copy them. All of a lane stands in one
table of int64 numbers. Its head has the number of the next unit that nobody has claimed and of the first that
may not be made yet, each in a cache line of its own. Then, for each field: the address of its rows and their
size. Then, for each slot: the number of the unit that was finished in it last, how many rows it has, and for
each field the address of their places (int64) and of the buffer that they go to.

Nothing is checked here: addresses and sizes are up to the caller. All in one file: Numba looks at no other to
tell whether what it keeps on disk is up to date.
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
EXPECTED_BYTES = 2048
"""Lines of a long row are asked for so far ahead of their use: by itself a core fetches ahead only up to the
end of a page."""
TOGETHER = 8
"""Rows that are streamed together, a line of each in turn."""
SHORT_BYTES = 64 << 10
"""Rows up to this size are. A core takes a while to notice that a row is read from end to end, so that it
fetches little of a short one ahead; of eight rows it waits for eight lines at once. Two threads, rows of 16 KB:
881,000 a second by memcpy, 1,060,000 one behind the other, 1,510,000 by eight. Of 150 KB it is as many."""
WORD = 8
NEXT, LIMIT, IS_CLOSED, NUM_FIELDS, NUM_SLOTS, STREAM_BYTES = 0, 8, 16, 17, 18, 19
"""Words of a lane's head; units of so many bytes of a field are streamed."""
HEAD, FIELD, SLOT = 24, 2, 2
"""Words of the head, of a field, and of a slot beside two for each field."""
LOOKS = 2000
"""Looks at a unit that another thread is at before the caller is told to sleep: some 20 us."""


def _pointer(builder: Any, address: Any, kind: Any = ir.IntType(64)) -> Any:  # noqa: B008  never changed
    return builder.inttoptr(address, kind.as_pointer())


@intrinsic  # type: ignore[untyped-decorator]
def _stream_line(typing_context: Any, to: Any, source: Any) -> Any:
    """A line to an address that is a multiple of lines."""

    def generate(context: Any, builder: Any, signature: Any, addresses: Any) -> Any:
        line = ir.VectorType(ir.IntType(64), LINE_BYTES // 8)
        to, source = (_pointer(builder, address, line) for address in addresses)
        stored = builder.store(builder.load(source, align=1), to, align=LINE_BYTES)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def _expect(typing_context: Any, address: Any) -> Any:
    """The line at an address is read soon, and once: it need not stay in the caches. Never fails."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line, number = _pointer(builder, arguments[0], ir.IntType(8)), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [line.type, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [line.type], kind)
        for_reading, stays_nowhere, is_data = (ir.Constant(number, value) for value in (0, 0, 1))
        builder.call(prefetch, [line, for_reading, stays_nowhere, is_data])
        return context.get_dummy_value()

    return types.void(types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def _copy(typing_context: Any, to: Any, source: Any, num_bytes: Any) -> Any:
    """Bytes from anywhere to anywhere."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *addresses, num_bytes = arguments
        to, source = (_pointer(builder, address, ir.IntType(8)) for address in addresses)
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


@intrinsic  # type: ignore[untyped-decorator]
def _load(typing_context: Any, address: Any) -> Any:
    """A number that another thread may write; what it wrote before is seen from here on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_pointer(builder, arguments[0]), "acquire", WORD)

    return types.int64(types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def _store(typing_context: Any, address: Any, number: Any) -> Any:
    """A number for other threads, behind all that was written before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[1], _pointer(builder, arguments[0]), "release", WORD)
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _swap(typing_context: Any, address: Any, old: Any, new: Any) -> Any:
    """Whether a number was the old one and is the new one now."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, old, new = arguments
        done = builder.cmpxchg(_pointer(builder, address), old, new, "seq_cst", "seq_cst")
        return builder.extract_value(done, 1)

    return types.boolean(types.intp, types.int64, types.int64), generate


@compiled
def gather(table: int, row_bytes: int, places: Array, to: int) -> None:
    """Stream the rows at these places (int64) of the table at an address, one behind the other, to another."""
    _stream_rows(table, row_bytes, places.ctypes.data, len(places), to)


def _publish(lane: int, word: int, number: int) -> None:
    """Set a word of a lane, behind all that was written before."""
    _store(lane + word * WORD, number)


# A single number is not worth letting go of the interpreter: beside a busy thread it comes back 0.5 ms later.
publish = compiled(_publish, nogil=False)


@compiled
def make_all(lane: int) -> None:
    """Make units until none may be made."""
    while _make_one(lane):
        pass


@compiled
def make_until(lane: int, number: int) -> bool:
    """Make units until this one is finished; false: another thread is still at it."""
    done = _slot(lane, number)
    looks = 0
    while _load(done) != number:
        if not _make_one(lane):
            looks += 1
            if looks > LOOKS:
                return False
    return True


@compiled
def _slot(lane: int, number: int) -> int:
    """Address of the slot that a unit has."""
    num_fields, num_slots = _load(lane + NUM_FIELDS * WORD), _load(lane + NUM_SLOTS * WORD)
    slot: int = lane + (HEAD + num_fields * FIELD + number % num_slots * (SLOT + 2 * num_fields)) * WORD
    return slot


def _is_made(lane: int, number: int) -> bool:
    """Whether a unit is finished."""
    return bool(_load(_slot(lane, number)) == number)


is_made = compiled(_is_made, nogil=False)


@compiled
def _make_one(lane: int) -> bool:
    """Claim the next unit and copy its rows; false: there is none."""
    number = _load(lane + NEXT * WORD)
    if number >= _load(lane + LIMIT * WORD) or _load(lane + IS_CLOSED * WORD):
        return False
    if not _swap(lane + NEXT * WORD, number, number + 1):
        return True
    slot = _slot(lane, number)
    count = _load(slot + WORD)
    for field in range(_load(lane + NUM_FIELDS * WORD)):
        of_field, of_slot = lane + (HEAD + field * FIELD) * WORD, slot + (SLOT + 2 * field) * WORD
        table, row_bytes = _load(of_field), _load(of_field + WORD)
        is_streamed = count * row_bytes >= _load(lane + STREAM_BYTES * WORD)
        _copy_rows(table, row_bytes, _load(of_slot), count, _load(of_slot + WORD), is_streamed)
    _store(slot, number)
    return True


@compiled
def _copy_rows(table: int, row_bytes: int, places: int, count: int, to: int, is_streamed: bool) -> None:
    if is_streamed:
        _stream_rows(table, row_bytes, places, count, to)
    else:
        for at in range(count):
            _copy(to + at * row_bytes, _row(table, row_bytes, places, at), row_bytes)


@compiled
def _row(table: int, row_bytes: int, places: int, at: int) -> int:
    """Address of the row at one of the places."""
    row: int = table + _load(places + at * WORD) * row_bytes
    return row


@compiled
def _stream_rows(table: int, row_bytes: int, places: int, count: int, to: int) -> None:
    at = 0
    while row_bytes <= SHORT_BYTES and at + TOGETHER <= count:
        _stream_together(table, row_bytes, places + at * WORD, to + at * row_bytes)
        at += TOGETHER
    while at < count:
        following = _row(table, row_bytes, places, min(at + 1, count - 1))
        _stream_row(_row(table, row_bytes, places, at), row_bytes, to + at * row_bytes, following)
        at += 1
    _finish()


@compiled
def _stream_together(table: int, row_bytes: int, places: int, to: int) -> None:
    """Stream the rows at `TOGETHER` places, each from where its first whole line goes to."""
    sources = (
        _row(table, row_bytes, places, 0),
        _row(table, row_bytes, places, 1),
        _row(table, row_bytes, places, 2),
        _row(table, row_bytes, places, 3),
        _row(table, row_bytes, places, 4),
        _row(table, row_bytes, places, 5),
        _row(table, row_bytes, places, 6),
        _row(table, row_bytes, places, 7),
    )
    lines = max(0, (row_bytes - LINE_BYTES + 1) // LINE_BYTES) * LINE_BYTES  # that every row has
    for line in range(0, lines, LINE_BYTES):
        for row in range(TOGETHER):
            edge = to + row * row_bytes
            head = -edge % LINE_BYTES
            _stream_line(edge + head + line, sources[row] + head + line)
    for row in range(TOGETHER):
        edge = to + row * row_bytes
        head = min(-edge % LINE_BYTES, row_bytes)
        _copy(edge, sources[row], head)
        _copy(edge + head + lines, sources[row] + head + lines, row_bytes - head - lines)


@compiled
def _stream_row(source: int, row_bytes: int, to: int, following: int) -> None:
    """Stream a row, and expect the lines behind: of this row, at its end of the one that follows."""
    stop, head = to + row_bytes, min(-to % LINE_BYTES, row_bytes)
    _copy(to, source, head)
    to, source = to + head, source + head
    while to + EXPECTED_BYTES <= stop:
        _expect(source + EXPECTED_BYTES)
        _stream_line(to, source)
        to, source = to + LINE_BYTES, source + LINE_BYTES
    while to + LINE_BYTES <= stop:
        _expect(following)
        _stream_line(to, source)
        to, source, following = to + LINE_BYTES, source + LINE_BYTES, following + LINE_BYTES
    _copy(to, source, stop - to)
