"""Columns: whatever is appended comes out in order, byte for byte, from memory that is used again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.store.column import LARGE_BYTES, SLAB_BYTES, SMALL_BYTES, TOGETHER_BYTES, Column, Slabs
from flatout.store.past_cache import BLOCK_BYTES, in_pieces
from flatout.types import Array

SIZES = [0, 1, 4, SMALL_BYTES - 4, SMALL_BYTES, TOGETHER_BYTES, SLAB_BYTES - 4, SLAB_BYTES, SLAB_BYTES + 4]
SIZES += [300_000, LARGE_BYTES - 4, LARGE_BYTES]


def some(size: int, number: int) -> Array:
    return (np.arange(size) * 7 + number).astype(np.uint8)


def bytes_of(column: Column) -> bytes:
    return b"".join(buffer.tobytes() for buffer in column.buffers())


def place(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(SIZES), st.sampled_from(["append", "room", "dropped"])), max_size=12
    )
)
def test_all_that_was_appended_in_order(steps: list[tuple[int, str]]) -> None:
    column, wanted = Column(Slabs()), b""
    for number, (size, how) in enumerate(steps):
        array = some(size, number)
        room = None if how == "append" else column.room(size)
        if room is not None:
            room[:] = array
            array = room
        if how != "dropped":
            wanted += array.tobytes()
            column.append(array)
    assert column.num_bytes == len(wanted)
    assert bytes_of(column) == wanted
    assert bytes_of(column) == wanted  # to look at them takes nothing away


@given(sizes=st.lists(st.sampled_from(SIZES), max_size=8), head=st.sampled_from([0, 1, 4096, 5000, 8192]))
def test_pieces_of_a_file_are_the_same_bytes_whole_blocks_and_aligned(sizes: list[int], head: int) -> None:
    column = Column(Slabs())
    for number, size in enumerate(sizes):
        column.append(some(size, number))
    buffers = [memoryview(bytes(head)), *(buffer.data for buffer in column.buffers()), memoryview(b"end")]
    found, lengths = b"", []
    for piece in in_pieces(buffers):
        assert place(np.frombuffer(piece, np.uint8)) % BLOCK_BYTES == 0
        found += bytes(piece)
        lengths.append(len(piece))
    assert found == b"".join(buffers)
    assert all(length % BLOCK_BYTES == 0 for length in lengths[:-1])


def test_what_lies_aligned_is_written_as_it_lies() -> None:
    column = Column(Slabs())
    column.append(some(3 * SLAB_BYTES, 1))
    places = {place(buffer) for buffer in column.buffers()}
    pieces = in_pieces([memoryview(bytes(2 * BLOCK_BYTES)), *(buffer.data for buffer in column.buffers())])
    assert [place(np.frombuffer(piece, np.uint8)) in places for piece in pieces] == [False, True, True, True]


def test_an_array_made_at_the_end_is_not_copied() -> None:
    column = Column(Slabs())
    column.append(some(5000, 1))
    room = column.room(8000)
    assert room is not None
    room[:] = some(8000, 2)
    column.append(room.view(np.float32).reshape(20, 100))
    room[:4] = 99  # the same memory
    assert bytes_of(column) == some(5000, 1).tobytes() + bytes([99] * 4) + some(8000, 2)[4:].tobytes()


def test_an_array_made_at_the_end_comes_next_or_never() -> None:
    column = Column(Slabs())
    room = column.room(8000)
    assert room is not None
    column.append(some(5000, 1))
    with pytest.raises(AssertionError, match="appended first"):
        column.append(room)


@pytest.mark.parametrize("size", [1, SMALL_BYTES - 1, SLAB_BYTES + 1])
def test_no_room_where_a_copy_is_as_good_or_there_is_none(size: int) -> None:
    assert Column(Slabs()).room(size) is None


def test_memory_is_used_again_and_given_back_once() -> None:
    slabs = Slabs()
    first = Column(slabs)
    first.append(some(3 * SLAB_BYTES, 1))
    places = {place(buffer) for buffer in first.buffers()}
    first.clear()
    first.clear()
    second, third = Column(slabs), Column(slabs)
    for column in (second, third):
        column.append(some(3 * SLAB_BYTES, 2))
    found = [place(buffer) for column in (second, third) for buffer in column.buffers()]
    assert len(set(found)) == 6  # nobody shares a slab
    assert places <= set(found)


def test_large_arrays_stay_where_they_are() -> None:
    column, large = Column(Slabs()), some(LARGE_BYTES, 3)
    column.append(some(10, 1))
    column.append(large)
    assert [np.shares_memory(buffer, large) for buffer in column.buffers()] == [False, True]
