"""Chunks as HDF5's filters write and read them, and damaged ones."""

from __future__ import annotations

import io
import zlib
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  registers zstd with libhdf5
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flatout.errors import StoreCorruptError
from flatout.store.compress import compress, decompress
from flatout.store.skeleton import DatasetPlan, lay_out

METHODS = ("zstd", "gzip")


@pytest.mark.parametrize("method", METHODS)
@given(array=hnp.arrays(st.sampled_from(["u1", "f4", "c8", "?"]), hnp.array_shapes(max_dims=3, max_side=5)))
def test_round_trip(method: str, array: Any) -> None:
    assert decompress(method, compress(method, array), array.nbytes) == array.tobytes()


@pytest.mark.parametrize("method", METHODS)
def test_libhdf5_reads_our_chunks(method: str) -> None:
    rows = [np.arange(6, dtype=np.int16).reshape(2, 3) + row for row in range(4)]
    chunks = [compress(method, row) for row in rows]
    skeleton = lay_out([DatasetPlan("x", np.dtype("<i2"), (4, 2, 3), method, chunks)], {})
    image = bytearray(skeleton.size)
    for offset, piece in skeleton.pieces:
        image[offset : offset + len(piece)] = piece
    with h5py.File(io.BytesIO(bytes(image)), "r") as file:
        np.testing.assert_array_equal(file["x"][:], rows)


@pytest.mark.parametrize("method", METHODS)
def test_every_changed_byte_is_an_error_or_changes_the_result(method: str) -> None:
    array = np.random.default_rng(0).integers(0, 4, 300, np.uint8)
    chunk = compress(method, array)
    for at in range(len(chunk)):
        damaged = bytearray(chunk)
        damaged[at] ^= 0x10
        try:
            found = decompress(method, bytes(damaged), array.nbytes)
        except StoreCorruptError:
            continue
        assert len(found) == array.nbytes  # what differs is then found by the crc


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("wanted", [0, 99, 101])
def test_another_size_is_refused(method: str, wanted: int) -> None:
    with pytest.raises(StoreCorruptError):
        decompress(method, compress(method, np.zeros(100, np.uint8)), wanted)


@pytest.mark.parametrize("chunk", [b"", b"garbage", b"\x28\xb5\x2f\xfd"])
@pytest.mark.parametrize("method", METHODS)
def test_garbage_is_refused(method: str, chunk: bytes) -> None:
    with pytest.raises(StoreCorruptError):
        decompress(method, chunk, 10)


def test_a_bomb_is_refused_before_it_bursts() -> None:
    zeros = bytes(1 << 26)
    with pytest.raises(StoreCorruptError, match="claims"):
        decompress("zstd", zstandard.ZstdCompressor().compress(zeros), 100)
    with pytest.raises(StoreCorruptError, match="does not hold"):
        decompress("gzip", zlib.compress(zeros), 100)
