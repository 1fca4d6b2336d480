"""The header of a NIfTI-1 or NIfTI-2 file: its bytes in, shape, dtype, scale and affine out, all checked.

Which affine holds and which values are repaired follows nibabel; lengths are taken as mm, like there.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from flatout.errors import SampleError
from flatout.types import Array

NUM_START_BYTES = 4
"""Bytes that tell the format and the byte order."""
EXTENSION_FLAG_BYTES = 4
"""Bytes between a header and the voxels of the same file at least."""

_RGB = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
_RGBA = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1"), ("A", "u1")])
_DTYPES: dict[int, np.dtype[Any]] = {
    2: np.dtype("u1"),
    4: np.dtype("i2"),
    8: np.dtype("i4"),
    16: np.dtype("f4"),
    64: np.dtype("f8"),
    128: _RGB,
    256: np.dtype("i1"),
    512: np.dtype("u2"),
    768: np.dtype("u4"),
    1024: np.dtype("i8"),
    1280: np.dtype("u8"),
    2304: _RGBA,
}
_REFUSED = {1: "1 bit", 32: "complex64", 1536: "float128", 1792: "complex128", 2048: "complex256"}

_Layout = Mapping[str, tuple[str, int]]
_NIFTI1: _Layout = {
    "dim": ("8h", 40),
    "datatype": ("h", 70),
    "pixdim": ("8f", 76),
    "vox_offset": ("f", 108),
    "scale": ("2f", 112),
    "codes": ("2h", 252),
    "quatern": ("6f", 256),
    "srow": ("12f", 280),
    "magic": ("4s", 344),
}
_NIFTI2: _Layout = {
    "magic": ("8s", 4),
    "datatype": ("h", 12),
    "dim": ("8q", 16),
    "pixdim": ("8d", 104),
    "vox_offset": ("q", 168),
    "scale": ("2d", 176),
    "codes": ("2i", 344),
    "quatern": ("6d", 352),
    "srow": ("12d", 400),
}
_FORMATS = {348: _NIFTI1, 540: _NIFTI2}
_Order = Literal["<", ">"]
_ORDERS: tuple[_Order, _Order] = ("<", ">")
_XFORM_CODES = range(1, 6)
# A unit quaternion that was stored in single precision misses length 1 by this much at the most.
_QUATERNION_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Header:
    """What decoding needs to know, checked."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    """Position of the first voxel; in its own file for a pair."""
    scale: tuple[float, float] | None
    """Slope and intercept; None: values are stored as they are."""
    affine: Array
    is_pair: bool

    @property
    def num_voxel_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def find_format(start: bytes) -> tuple[int, _Order]:
    """The first bytes of a file -> bytes of its header, and its byte order.

    Raises:
        SampleError: it is no NIfTI file.
    """
    for order in _ORDERS:
        (size,) = struct.unpack(order + "i", start)
        if size in _FORMATS:
            return size, order
    raise SampleError(
        "decode", f"not a NIfTI file: it starts with {start.hex(' ')}, wanted the number 348 or 540"
    )


def parse_header(data: bytes, order: _Order) -> Header:
    """The whole header's bytes -> what they say.

    Raises:
        SampleError: a value is impossible, or asks for something not supported.
    """
    layout = _FORMATS[len(data)]
    values = {name: struct.unpack_from(order + form, data, at) for name, (form, at) in layout.items()}
    magic = values["magic"][0][:3]
    if magic not in (b"n+1", b"ni1", b"n+2", b"ni2"):
        raise SampleError("decode", f"not a NIfTI file: its magic is {magic!r}, wanted b'n+1' or b'n+2'")
    is_pair = magic[1:2] == b"i"
    shape = _parse_shape(values["dim"])
    return Header(
        shape=shape,
        dtype=_parse_dtype(values["datatype"][0]).newbyteorder(order),
        offset=_parse_offset(values["vox_offset"][0], 0 if is_pair else len(data) + EXTENSION_FLAG_BYTES),
        scale=_parse_scale(*values["scale"]),
        affine=_parse_affine(values, shape),
        is_pair=is_pair,
    )


def _parse_shape(dim: tuple[int, ...]) -> tuple[int, ...]:
    shape = dim[1 : dim[0] + 1]
    if not 1 <= dim[0] <= 7 or any(size < 1 for size in shape):
        raise SampleError("decode", f"the header's dimensions are impossible: {list(dim)}")
    return shape


def _parse_dtype(code: int) -> np.dtype[Any]:
    if code not in _DTYPES:
        raise SampleError("decode", f"voxels of type {_REFUSED.get(code, f'code {code}')} are not supported")
    return _DTYPES[code]


def _parse_offset(value: float, least: int) -> int:
    """Where voxels start. 0 stands for the least possible place, as some writers leave it empty."""
    if not math.isfinite(value) or (value and not least <= value < 2**63):
        raise SampleError("decode", f"the header's vox_offset is {value}; it must be at least {least}")
    return max(int(value), least)


def _parse_scale(slope: float, inter: float) -> tuple[float, float] | None:
    if slope == 0 or not math.isfinite(slope) or (slope, inter) == (1, 0):
        return None
    if not math.isfinite(inter):
        raise SampleError("decode", f"the header's scl_inter is {inter} while scl_slope is {slope}")
    return slope, inter


def _parse_affine(values: Mapping[str, tuple[Any, ...]], shape: tuple[int, ...]) -> Array:
    """Voxel -> world: the sform where it is set, else the qform, else voxel sizes around the centre."""
    qform_code, sform_code = values["codes"]
    # Repairs as nibabel's: no size is 1, a negative one loses its sign, an unknown qfac is 1.
    sizes = np.array([abs(size) or 1.0 for size in values["pixdim"][1:4]])
    affine = np.eye(4)
    if sform_code in _XFORM_CODES:
        affine[:3] = np.reshape(values["srow"], (3, 4))
    elif qform_code in _XFORM_CODES:
        sizes[2] *= -1 if values["pixdim"][0] == -1 else 1
        affine[:3, :3] = _rotation(*values["quatern"][:3]) * sizes
        affine[:3, 3] = values["quatern"][3:]
    else:
        sizes[len(shape) :] = 1.0
        sizes[0] *= -1
        affine[:3, :3] = np.diag(sizes)
        affine[:3, 3] = -sizes * (np.array([*shape, 1, 1][:3]) - 1) / 2
    if not np.isfinite(affine).all():
        raise SampleError("decode", f"the header's affine is not finite: {affine[:3].tolist()}")
    return affine


def _rotation(b: float, c: float, d: float) -> Array:
    """Rotation of the unit quaternion whose last three parts are given; the first is not negative."""
    squared = 1.0 - (b * b + c * c + d * d)
    if not squared > -_QUATERNION_TOLERANCE:
        raise SampleError("decode", f"the header's qform is no rotation: quaternion {(b, c, d)}")
    a = math.sqrt(squared) if squared > 3 * np.finfo(np.float32).eps else 0.0
    scale = 2.0 / (a * a + b * b + c * c + d * d)
    outer = scale * np.outer((b, c, d), (b, c, d))
    turn = scale * a * np.array([[0.0, -d, c], [d, 0.0, -b], [-c, b, 0.0]])
    rotation: Array = np.eye(3) * (1.0 - np.trace(outer)) + outer + turn
    return rotation
