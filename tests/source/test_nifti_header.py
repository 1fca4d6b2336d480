"""The NIfTI header alone: byte order, repairs, and the three ways to an affine."""

from __future__ import annotations

import struct

import nibabel
import numpy as np
import pytest

from flatout.errors import SampleError
from flatout.source.nifti_header import Header, find_format, parse_header


def parse(header: nibabel.Nifti1Header) -> Header:
    data = header.binaryblock
    num_bytes, order = find_format(data[:4])
    assert num_bytes == len(data)
    return parse_header(data, order)


def make_header(**values: object) -> nibabel.Nifti1Header:
    header = nibabel.Nifti1Header()
    header.set_data_shape((5, 6, 7))
    header["pixdim"][1:4] = 2.0, 3.0, 4.0
    for name, value in values.items():
        header[name] = value
    return header


@pytest.mark.parametrize("header_class", [nibabel.Nifti1Header, nibabel.Nifti2Header])
@pytest.mark.parametrize("order", ["<", ">"])
def test_format_and_byte_order_are_found(header_class: type, order: str) -> None:
    header = header_class(endianness=order)
    header.set_data_shape((5, 6, 7))
    header.set_data_dtype(np.int16)
    found = parse(header)
    assert found.shape == (5, 6, 7)
    assert found.dtype == np.dtype(order + "i2")
    assert found.num_voxel_bytes == 420
    assert found.offset == header.sizeof_hdr + 4


def test_other_files_are_no_nifti() -> None:
    with pytest.raises(SampleError, match="89 50 4e 47"):
        find_format(b"\x89PNG")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"sform_code": 1, "qform_code": 1},
        {"qform_code": 2, "quatern_b": 0.5, "quatern_c": -0.5, "quatern_d": 0.5, "qoffset_x": 9.0},
        {"qform_code": 1, "quatern_c": 1.0},
        {"qform_code": 1, "quatern_b": 0.70710678, "quatern_c": 0.70710678},
    ],
)
@pytest.mark.parametrize("qfac", [-1.0, 1.0])
def test_the_affine_is_nibabels(values: dict[str, float], qfac: float) -> None:
    header = make_header(**values)
    header["pixdim"][0] = qfac
    header["srow_x"] = 1, 2, 3, 4
    header["srow_y"] = 0, 2, 0, 5
    header["srow_z"] = 0, 0, 3, 6
    assert np.allclose(parse(header).affine, header.get_best_affine(), atol=1e-6)


def test_a_quaternion_slightly_too_long_is_a_half_turn() -> None:
    affine = parse(make_header(qform_code=1, quatern_b=1.00001)).affine
    assert np.allclose(affine[:3, :3], np.diag([2, -3, -4]), atol=1e-3)


def test_missing_and_negative_voxel_sizes_are_repaired() -> None:
    header = make_header()
    header["pixdim"][:4] = 7.0, 0.0, -3.0, 4.0
    assert np.allclose(np.diag(parse(header).affine), [-1, 3, 4, 1])


def test_unknown_codes_count_as_unset() -> None:
    header = make_header(sform_code=99, qform_code=-4)
    assert np.allclose(np.diag(parse(header).affine), [-2, 3, 4, 1])


def test_an_offset_of_nought_means_right_after_the_header() -> None:
    assert parse(make_header(vox_offset=0.0, magic=b"n+1")).offset == 352
    assert parse(make_header(vox_offset=0.0, magic=b"ni1")).offset == 0


def test_a_negative_offset_is_refused() -> None:
    with pytest.raises(SampleError, match="vox_offset is -352"):
        parse(make_header(vox_offset=-352.0))


def test_shapes_of_fewer_than_three_axes_are_kept() -> None:
    header = nibabel.Nifti1Header()
    header.set_data_shape((5,))
    found = parse(header)
    assert found.shape == (5,)
    assert np.allclose(found.affine, header.get_base_affine())


def test_the_layouts_cover_what_nibabel_writes() -> None:
    header = nibabel.Nifti2Header()
    header.set_data_shape((2, 3, 4))
    header.set_sform(np.diag([5.0, 6.0, 7.0, 1.0]), code=1)
    header.set_slope_inter(2.5, -7)
    assert struct.unpack_from("<i", header.binaryblock)[0] == 540
    found = parse(header)
    assert found.scale == (2.5, -7.0)
    assert np.allclose(np.diag(found.affine), [5, 6, 7, 1])
