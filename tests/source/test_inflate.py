"""Inflating gzip: exactly what was asked for, whatever the file claims."""

from __future__ import annotations

import gzip
import io
import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import SampleError
from flatout.source.inflate import Inflater


def inflate(data: bytes, *sizes: int) -> bytes:
    inflater = Inflater(data)
    found = b"".join(inflater.read(size) for size in sizes)
    inflater.finish()
    return found


@given(
    members=st.lists(st.binary(max_size=2000), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 8000), max_size=4),
    padding=st.integers(0, 20),
)
def test_any_members_read_in_any_pieces_give_the_same_bytes(
    members: list[bytes], cuts: list[int], padding: int
) -> None:
    whole = b"".join(members)
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    sizes = [end - start for start, end in itertools.pairwise(edges)]
    data = b"".join(gzip.compress(member, 1) for member in members) + bytes(padding)
    assert inflate(data, *sizes) == whole


def test_a_large_file_of_small_members_is_read_whole() -> None:
    whole = bytes(range(256)) * 4000
    data = b"".join(gzip.compress(whole[at : at + 3000], 1) for at in range(0, len(whole), 3000))
    assert inflate(data, 10, len(whole) - 10) == whole


def test_a_member_with_a_long_file_name_is_read() -> None:
    buffer = io.BytesIO()
    with gzip.GzipFile("x" * 10_000, "wb", fileobj=buffer) as file:
        file.write(b"content")
    assert inflate(buffer.getvalue(), 7) == b"content"


@pytest.mark.parametrize("kept", [0, 1, 2, 9, 10, 11, 30, -1, -4, -8, -9])
def test_a_truncated_file_is_refused(kept: int) -> None:
    whole = bytes(range(200))
    with pytest.raises(SampleError, match=r"early|truncated") as caught:
        inflate(gzip.compress(whole)[:kept], len(whole))
    assert caught.value.stage == "decode"


@pytest.mark.parametrize("position", [-1, -5, -12, 20])
def test_a_flipped_bit_is_noticed(position: int) -> None:
    whole = b"abc" * 300
    data = bytearray(gzip.compress(whole))
    data[position] ^= 4
    with pytest.raises(SampleError):
        inflate(bytes(data), len(whole))


def test_more_bytes_than_claimed_are_refused() -> None:
    with pytest.raises(SampleError, match="more bytes"):
        inflate(gzip.compress(bytes(100)), 99)


def test_garbage_after_the_stream_is_refused() -> None:
    with pytest.raises(SampleError, match="3 bytes of garbage"):
        inflate(gzip.compress(bytes(100)) + b"\0\0abc", 100)


def test_text_is_no_gzip_stream() -> None:
    with pytest.raises(SampleError, match="damaged"):
        inflate(b"hello, this is plain text", 5)


def test_a_bomb_costs_no_more_memory_than_was_asked_for() -> None:
    bomb = gzip.compress(bytes(1 << 27), 9)
    tracemalloc.start()
    try:
        with pytest.raises(SampleError, match="more bytes"):
            inflate(bomb, 352, 1 << 16)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
