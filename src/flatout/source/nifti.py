"""NIfTI-1 and NIfTI-2 files of either byte order: header first, then exactly the voxels that it claims.

The header is read here rather than by nibabel: `np.asanyarray(nibabel.load(path).dataobj)` takes 1.30 ms
for a hippocampus scan of 74 KB, building an image from inflated bytes 0.58 ms, this module 0.32 ms, of
which 0.25 ms inflate (mean of 60 files, one core). Values and affines are equal to nibabel's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flatout.errors import SampleError
from flatout.source.files import SourceFile
from flatout.source.inflate import MAGIC as GZIP_MAGIC
from flatout.source.inflate import Inflater
from flatout.source.nifti_header import NUM_START_BYTES, Header, find_format, parse_header
from flatout.source.pair import is_half, names_of
from flatout.types import Array, Decoded, Limits

_NUM_BLOCK_VOXELS = 1 << 15


def decode(file: SourceFile, limits: Limits) -> Decoded:
    """A NIfTI file (.nii, .nii.gz, or either half of .hdr/.img) -> voxels (X, Y, Z, ...) and affine.

    Values keep their stored dtype, as a read-only array, unless the header scales them: then float32.

    Raises:
        SampleError: damaged, truncated, of a kind not supported, or larger than the limits.
    """
    if is_half(file.name):
        return _decode_pair(file, limits)
    source = _open(file, limits)
    header = _read_header(source)
    if header.is_pair:
        raise SampleError("decode", f"{file.name} is the header of a .hdr/.img pair, not a whole NIfTI file")
    return _decode_voxels(source, header, limits)


def _decode_pair(file: SourceFile, limits: Limits) -> Decoded:
    if file.size is not None:
        raise SampleError("find", f"{file.name}: a .hdr/.img pair cannot be read from an archive")
    header = _read_header(_open(_sibling(file.path, "hdr"), limits))
    if not header.is_pair:
        raise SampleError("decode", f"{file.name}: the header says that it is a single NIfTI file")
    return _decode_voxels(_open(_sibling(file.path, "img"), limits), header, limits)


def _sibling(path: Path, which: str) -> SourceFile:
    """One half of a pair, compressed or not, in the same folder."""
    names = names_of(path.name, which)
    for name in names:
        half = path.with_name(name)
        if half.is_file():
            if half != path and half.is_symlink():
                raise SampleError("find", f"{half}: this half of the pair is a link; copy the file")
            return SourceFile.whole(half)
    raise SampleError("find", f"{path.name}: half of the pair is missing (looked for {', '.join(names)})")


class _Reader:
    """Bytes of a plain or gzip-compressed file, in order."""

    def __init__(self, data: bytes) -> None:
        self._inflater = Inflater(data) if data.startswith(GZIP_MAGIC) else None
        self._data = memoryview(data)
        self.position = 0

    def read(self, num_bytes: int) -> bytes | memoryview:
        start, self.position = self.position, self.position + num_bytes
        if self._inflater:
            return self._inflater.read(num_bytes)
        if self.position > len(self._data):
            got = len(self._data) - start
            raise SampleError("decode", f"the file ends early: got {got:,} of {num_bytes:,} bytes")
        return self._data[start : self.position]

    def finish(self) -> None:
        if self._inflater:
            self._inflater.finish()
        elif self.position < len(self._data):
            extra = len(self._data) - self.position
            raise SampleError("decode", f"the file holds {extra:,} bytes more than the header claims")


def _open(file: SourceFile, limits: Limits) -> _Reader:
    data = file.read_bytes(limits)
    if not data:
        raise SampleError("decode", f"{file.name} is empty; copy it again")
    return _Reader(data)


def _read_header(source: _Reader) -> Header:
    start = bytes(source.read(NUM_START_BYTES))
    num_bytes, order = find_format(start)
    return parse_header(start + bytes(source.read(num_bytes - NUM_START_BYTES)), order)


def _decode_voxels(source: _Reader, header: Header, limits: Limits) -> Decoded:
    num_bytes = header.offset + header.num_voxel_bytes
    if num_bytes > limits.max_sample_bytes:
        raise SampleError(
            "decode",
            f"the header claims {num_bytes:,} bytes for shape {header.shape}; "
            f"max_sample_bytes is {limits.max_sample_bytes:,}",
        )
    source.read(header.offset - source.position)
    data = source.read(header.num_voxel_bytes)
    source.finish()
    array = np.frombuffer(data, dtype=header.dtype).reshape(header.shape, order="F")
    array = array.astype(header.dtype.newbyteorder("="), copy=False)
    if header.scale is not None:
        array = _scaled(array, *header.scale)
    return Decoded(array=array, affine=header.affine)


def _scaled(array: Array, slope: float, inter: float) -> Array:
    """float32 of `array * slope + inter`, computed in float64 as nibabel does."""
    if array.dtype.names:
        raise SampleError("decode", f"RGB voxels with scl_slope {slope} and scl_inter {inter}")
    stored = array.ravel(order="F")
    scaled = np.empty(stored.shape, dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        # Blocks keep the float64 values in the cache: 2x over whole arrays at 256 x 256 x 100.
        for start in range(0, stored.size, _NUM_BLOCK_VOXELS):
            block = stored[start : start + _NUM_BLOCK_VOXELS].astype(np.float64)
            block *= slope
            block += inter
            scaled[start : start + _NUM_BLOCK_VOXELS] = block
    return scaled.reshape(array.shape, order="F")
