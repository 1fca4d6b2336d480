"""Columns: whatever is appended comes out in order, byte for byte, from memory that is used again."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.store.column import (
    LARGE_BYTES,
    ROOM_BYTES,
    SLAB_BYTES,
    SMALL_BYTES,
    TOGETHER_BYTES,
    Column,
    SlabColumn,
    Slabs,
)
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


@pytest.mark.parametrize("has_slabs", [False, True])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(SIZES), st.sampled_from(["append", "room", "dropped"])), max_size=12
    )
)
def test_all_that_was_appended_in_order(has_slabs: bool, steps: list[tuple[int, str]]) -> None:
    column, wanted = SlabColumn(Slabs()) if has_slabs else Column(), b""
    for number, (size, how) in enumerate(steps):
        array = some(size, number)
        room = None if how == "append" else column.room(size)
        if room is not None and len(room):
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
    column = SlabColumn(Slabs())
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
    column = SlabColumn(Slabs())
    column.append(some(SLAB_BYTES + BLOCK_BYTES, 1))
    (first, second) = column.buffers()
    pieces = in_pieces([memoryview(bytes(2 * BLOCK_BYTES)), first.data, second.data])
    shared = [
        (len(piece), [np.shares_memory(np.frombuffer(piece, np.uint8), each) for each in (first, second)])
        for piece in pieces
    ]
    assert shared == [
        (2 * BLOCK_BYTES, [False, False]),
        (SLAB_BYTES, [True, False]),
        (BLOCK_BYTES, [False, True]),
    ]


def test_an_array_made_at_the_end_is_not_copied() -> None:
    column = SlabColumn(Slabs())
    column.append(some(5000, 1))
    room = column.room(160_000)
    assert room is not None
    room[:] = some(160_000, 2)
    column.append(room.view(np.float32).reshape(20, 2000))
    room[:4] = 99  # the same memory
    assert bytes_of(column) == some(5000, 1).tobytes() + bytes([99] * 4) + some(160_000, 2)[4:].tobytes()


def test_an_array_made_at_the_end_comes_next_or_never() -> None:
    column = SlabColumn(Slabs())
    room = column.room(160_000)
    assert room is not None
    column.append(some(5000, 1))
    with pytest.raises(AssertionError, match="appended first"):
        column.append(room)


@pytest.mark.parametrize(
    ("size", "most", "wanted"),
    [
        (0, 64, None),  # a copy is as good
        (1, 1, None),
        (1, ROOM_BYTES - 1, None),
        (1, ROOM_BYTES, ROOM_BYTES),
        (LARGE_BYTES, 1, None),
        (SLAB_BYTES, 1, SLAB_BYTES),
        (SLAB_BYTES + 1, 1, 0),  # more than a slab has
        (900_000, 4, 1_800_000),
    ],
)
def test_room_for_as_many_as_a_slab_has(size: int, most: int, wanted: int | None) -> None:
    room = SlabColumn(Slabs()).room(size, most)
    assert (None if room is None else len(room)) == wanted


def test_room_behind_what_is_there() -> None:
    column = SlabColumn(Slabs())
    column.append(some(SLAB_BYTES - 200_000, 1))
    for _ in range(2):  # the first is never appended
        room = column.room(80_000, 9)
        assert room is not None
        assert len(room) == 160_000
    room[:] = 7
    column.append(room)
    rest = column.room(80_000, 9)
    assert rest is not None
    assert not len(rest)
    assert bytes_of(column) == some(SLAB_BYTES - 200_000, 1).tobytes() + bytes([7]) * 160_000


def test_memory_is_used_again_and_by_one_at_a_time() -> None:
    slabs = Slabs()
    first = SlabColumn(slabs)
    first.append(some(3 * SLAB_BYTES - 7, 1)[: LARGE_BYTES - 1])
    places = {place(buffer) for buffer in first.buffers()}
    slabs.give(first.clear())
    assert first.clear() == []
    second, third = SlabColumn(slabs), SlabColumn(slabs)
    for column in (second, third):
        column.append(some(LARGE_BYTES - 1, 2))
    found = [place(buffer) for column in (second, third) for buffer in column.buffers()]
    assert len(set(found)) == 4  # nobody shares a slab
    assert places <= set(found)


def test_a_shard_that_is_written_keeps_its_bytes_while_the_next_is_filled() -> None:
    slabs, wanted = Slabs(), some(1_000_000, 1).tobytes()
    for _ in range(3):
        written, filled = SlabColumn(slabs), SlabColumn(slabs)
        written.append(some(1_000_000, 1))
        pieces = []
        for buffer in written.buffers():
            filled.append(some(900_000, 9))
            pieces.append(buffer.tobytes())
        assert b"".join(pieces) == wanted
        slabs.give(written.clear())
        filled.append(some(900_000, 8))
        assert bytes_of(filled) == some(900_000, 9).tobytes() + some(900_000, 8).tobytes()
        slabs.give(filled.clear())


def test_memory_that_nobody_wants_goes_back() -> None:
    slabs = Slabs()
    slabs.give([slabs.take() for _ in range(10)])
    slabs.give([slabs.take() for _ in range(2)])  # eight lay idle
    assert len(slabs._free) == 2
    slabs.give([])
    slabs.give([])
    assert slabs._free == []


@pytest.mark.parametrize("size", [1, SMALL_BYTES - 1])
def test_a_field_of_small_arrays_takes_no_slab(size: int) -> None:
    column = SlabColumn(Slabs())
    for number in range(3 * TOGETHER_BYTES // size):
        column.append(some(size, number))
    assert column.clear() == []


def test_no_memory_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("flatout.store.column.mmap.mmap", refused)
    with pytest.raises(MemoryError, match="of a shard"):
        SlabColumn(Slabs()).append(some(5000, 1))


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked for on Linux")
def test_slabs_lie_in_huge_pages() -> None:
    if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("this system gives no huge pages")
    slab = Slabs().take()
    slab[:] = 1
    address = place(slab)
    assert address % SLAB_BYTES == 0
    maps = re.findall(
        r"^([0-9a-f]+)-([0-9a-f]+) (\S+).*?^VmFlags: (.*?)$",
        Path("/proc/self/smaps").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    (found,) = [each for each in maps if int(each[0], 16) <= address < int(each[1], 16)]
    assert found[2] == "rw-p"  # pages that are shared have a rule of their own
    assert "hg" in found[3].split()


def test_large_arrays_stay_where_they_are() -> None:
    column, large = SlabColumn(Slabs()), some(LARGE_BYTES, 3)
    column.append(some(10, 1))
    column.append(large)
    assert [np.shares_memory(buffer, large) for buffer in column.buffers()] == [False, True]
