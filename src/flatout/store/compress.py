"""Compression of one sample into one HDF5 chunk, and back, without libhdf5."""

from __future__ import annotations

import zlib

import numpy as np
import zstandard

from flatout.errors import StoreCorruptError
from flatout.types import Array

ZSTD_LEVEL = 3
GZIP_LEVEL = 6


def compress(method: str, array: Array) -> bytes:
    """The bytes that the HDF5 filter of `method` would have written for this chunk."""
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    if method == "zstd":
        # The content size in the frame's head is what the HDF5 filter allocates by.
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True).compress(raw)
    return zlib.compress(raw, GZIP_LEVEL)


def decompress(method: str, chunk: bytes, num_bytes: int) -> bytes:
    """The chunk's `num_bytes` bytes.

    Raises:
        StoreCorruptError: it is damaged, or holds another number of bytes.
    """
    try:
        if method == "zstd":
            head = zstandard.get_frame_parameters(chunk)
            if head.content_size != num_bytes:  # checked before anything of that size is allocated
                raise StoreCorruptError(f"a zstd chunk claims {head.content_size:,} bytes, not {num_bytes:,}")
            return zstandard.ZstdDecompressor().decompress(chunk)
        inflater = zlib.decompressobj()
        raw = inflater.decompress(chunk, num_bytes)
        if len(raw) != num_bytes or not inflater.eof:
            raise StoreCorruptError(f"a gzip chunk does not hold the {num_bytes:,} bytes it should")
        return raw
    except (zlib.error, zstandard.ZstdError, MemoryError, OverflowError) as error:
        raise StoreCorruptError(f"a {method} chunk cannot be read: {error}") from error
