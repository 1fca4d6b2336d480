"""NIfTI: equal to nibabel on everything that is whole, a SampleError on everything that is not."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nibabel.testing import data_path as nibabel_data

from flatout.errors import SampleError
from flatout.source.files import SourceFile
from flatout.source.nifti import decode
from flatout.types import Decoded, Limits

DTYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"]
SMALL = Limits(max_sample_bytes=1 << 22)


def decode_path(path: Path, limits: Limits = SMALL) -> Decoded:
    return decode(SourceFile.whole(path), limits)


def decode_bytes(data: bytes, folder: Path, name: str = "scan.nii", limits: Limits = SMALL) -> Decoded:
    path = folder / name
    path.write_bytes(data)
    return decode_path(path, limits)


def assert_equal_to_nibabel(path: Path) -> None:
    found = decode_path(path, Limits())
    image = nibabel.load(path)
    wanted = np.asanyarray(image.dataobj)
    assert np.allclose(found.affine, image.affine, rtol=0, atol=1e-12)
    is_scaled = (image.dataobj.slope, image.dataobj.inter) != (1, 0)  # then nibabel gives float64
    assert found.array.dtype == (np.float32 if is_scaled else wanted.dtype.newbyteorder("="))
    if is_scaled:
        wanted = wanted.astype(np.float32)
    np.testing.assert_array_equal(found.array, wanted)


def make_image(dtype: str = "i2", shape: tuple[int, ...] = (3, 4, 5), **header: Any) -> nibabel.Nifti1Image:
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    image = nibabel.Nifti1Image(values, np.diag([2.0, 3.0, 4.0, 1.0]), dtype=values.dtype)
    for name, value in header.items():
        image.header[name] = value
    return image


def patched(image: nibabel.Nifti1Image, form: str, at: int, *values: Any) -> bytes:
    data = bytearray(image.to_bytes())
    struct.pack_into("<" + form, data, at, *values)
    return bytes(data)


def test_real_scans_are_equal_to_nibabel(data_dir: Path) -> None:
    for path in sorted((data_dir / "mr_hippocampus").glob("*/*.nii.gz")):
        assert_equal_to_nibabel(path)


@pytest.mark.parametrize("path", sorted(nibabel_data.glob("*.nii*")), ids=lambda path: path.name)
def test_the_files_of_nibabels_own_tests_are_equal(path: Path) -> None:
    if "dconn" in path.name:
        pytest.skip("a CIFTI matrix, which nibabel reads as something else than an image")
    assert_equal_to_nibabel(path)


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_every_kind_of_header_is_equal_to_nibabel(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    image_class = data.draw(st.sampled_from([nibabel.Nifti1Image, nibabel.Nifti2Image]))
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    order = data.draw(st.sampled_from("<>"))
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    values = np.random.default_rng(0).integers(0, 100, shape).astype(dtype.newbyteorder(order))
    header = image_class.header_class(endianness=order)
    header.set_data_dtype(values.dtype)
    angles = data.draw(st.tuples(*[st.floats(-3, 3)] * 3))
    zooms = data.draw(st.tuples(*[st.floats(0.1, 9)] * 3))
    affine = np.eye(4)
    affine[:3, :3] = nibabel.eulerangles.euler2mat(*angles) @ np.diag(zooms)
    affine[:3, 3] = data.draw(st.tuples(*[st.floats(-99, 99)] * 3))
    image = image_class(values, affine, header)
    image.set_sform(affine, code=data.draw(st.integers(0, 5)))
    image.set_qform(affine, code=data.draw(st.integers(0, 5)))
    if data.draw(st.booleans()):
        image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"a note"))
    path = tmp_path_factory.mktemp("any") / f"scan.nii{data.draw(st.sampled_from(['', '.gz']))}"
    nibabel.save(image, path)
    assert_equal_to_nibabel(path)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [(0.5, 0.0), (1.0, -1024.0), (-2.25, 3.5), (1.0, 0.0), (0.0, 7.0)])
def test_scaled_values_are_equal_to_nibabel(dtype: str, scale: tuple[float, float], tmp_path: Path) -> None:
    path = tmp_path / "scan.nii"
    path.write_bytes(patched(make_image(dtype), "2f", 112, *scale))
    assert_equal_to_nibabel(path)
    is_scaled = scale not in ((1.0, 0.0), (0.0, 7.0))
    assert decode_path(path).array.dtype == (np.float32 if is_scaled else np.dtype(dtype))


def test_a_slope_of_nan_means_none(tmp_path: Path) -> None:
    found = decode_bytes(patched(make_image("i2"), "2f", 112, np.nan, np.nan), tmp_path)
    assert found.array.dtype == np.int16


@pytest.mark.parametrize("names", [("a.hdr", "a.img"), ("a.hdr.gz", "a.img.gz")])
@pytest.mark.parametrize("half", [0, 1])
def test_both_halves_of_a_pair_lead_to_it(names: tuple[str, str], half: int, tmp_path: Path) -> None:
    image = nibabel.Nifti1Pair(np.arange(24, dtype=np.int16).reshape(2, 3, 4), np.diag([1.0, 2, 3, 1]))
    nibabel.save(image, tmp_path / names[1])
    found = decode_path(tmp_path / names[half])
    np.testing.assert_array_equal(found.array, image.dataobj)
    np.testing.assert_array_equal(found.affine, image.affine)


def test_half_a_pair_is_refused(tmp_path: Path) -> None:
    image = nibabel.Nifti1Pair(np.zeros((2, 3, 4), np.int16), np.eye(4))
    nibabel.save(image, tmp_path / "a.img")
    (tmp_path / "a.img").unlink()
    with pytest.raises(SampleError, match=r"half of the pair is missing.*a\.img") as caught:
        decode_path(tmp_path / "a.hdr")
    assert caught.value.stage == "find"
    (tmp_path / "outside").write_bytes(bytes(48))
    (tmp_path / "a.img").symlink_to(tmp_path / "outside")
    with pytest.raises(SampleError, match="is a link"):
        decode_path(tmp_path / "a.hdr")


def test_a_member_of_an_archive_is_read_in_place(tmp_path: Path) -> None:
    member = gzip.compress(make_image().to_bytes())
    path = tmp_path / "scans.tar"
    path.write_bytes(b"before" + member + b"after")
    found = decode(SourceFile(path, "scan.nii.gz", offset=6, size=len(member)), SMALL)
    np.testing.assert_array_equal(found.array, make_image().dataobj)


@pytest.mark.parametrize("name", ["scan.nii", "scan.nii.gz"])
def test_an_empty_file_is_called_so(name: str, tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=f"^decode: {name} is empty; copy it again$"):
        decode_bytes(b"", tmp_path, name)


@pytest.mark.parametrize("half", ["a.hdr", "a.img"])
def test_an_empty_half_of_a_pair_is_called_so(half: str, tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti1Pair(np.zeros((2, 3, 4), np.int16), np.eye(4)), tmp_path / "a.img")
    (tmp_path / half).write_bytes(b"")
    with pytest.raises(SampleError, match=f"^decode: {half} is empty; copy it again$"):
        decode_path(tmp_path / "a.hdr")


def test_rgb_voxels_keep_their_channels(tmp_path: Path) -> None:
    dtype = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
    values = np.frombuffer(bytes(range(72)), dtype=dtype).reshape(2, 3, 4)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), tmp_path / "rgb.nii")
    found = decode_path(tmp_path / "rgb.nii").array
    assert found.dtype.names == ("R", "G", "B")
    np.testing.assert_array_equal(found["G"], values["G"])


@pytest.mark.parametrize(
    ("form", "at", "values", "reason"),
    [
        ("i", 0, [349], "not a NIfTI file: it starts with"),
        ("4s", 344, [b"nope"], "its magic is"),
        ("4s", 344, [b"ni1\0"], "header of a .hdr/.img pair"),
        ("h", 40, [0], "dimensions are impossible"),
        ("h", 40, [8], "dimensions are impossible"),
        ("h", 42, [-3], "dimensions are impossible"),
        ("h", 44, [0], "dimensions are impossible"),
        ("8h", 40, [7] + [32767] * 7, "max_sample_bytes is"),
        ("h", 70, [32], "complex64 are not supported"),
        ("h", 70, [1536], "float128 are not supported"),
        ("h", 70, [1], "1 bit are not supported"),
        ("h", 70, [77], "code 77 are not supported"),
        ("f", 108, [np.nan], "vox_offset is nan"),
        ("f", 108, [np.inf], "vox_offset is inf"),
        ("f", 108, [100.0], "vox_offset is 100.0"),
        ("f", 108, [1e18], "max_sample_bytes is"),
        ("2f", 112, [2.0, np.nan], "scl_inter is nan"),
        ("f", 280, [np.nan], "affine is not finite"),
        ("f", 292, [np.inf], "affine is not finite"),
        ("h", 42, [2], "more than the header claims"),
        ("h", 42, [4], "ends early"),
        ("f", 108, [368.0], "ends early"),
    ],
)
def test_a_lying_header_is_refused(form: str, at: int, values: list[Any], reason: str, tmp_path: Path) -> None:
    data = patched(make_image(), form, at, *values)
    for content in (data, gzip.compress(data)):
        with pytest.raises(SampleError) as caught:
            decode_bytes(content, tmp_path)
        assert caught.value.stage == "decode"
        assert reason.replace("more than", "") in caught.value.reason.replace("more bytes than", "").replace(
            "more than", ""
        )


def test_a_rotation_that_is_none_is_refused(tmp_path: Path) -> None:
    data = patched(make_image(sform_code=0, qform_code=1), "f", 256, 3.0)
    with pytest.raises(SampleError, match="no rotation"):
        decode_bytes(data, tmp_path)


def test_dimensions_beyond_any_memory_are_refused_by_number(tmp_path: Path) -> None:
    image = nibabel.Nifti2Image(np.zeros((2, 2, 2), np.uint8), np.eye(4))
    data = bytearray(image.to_bytes())
    struct.pack_into("<4q", data, 16, 3, 2**62, 2**62, 2**62)
    with pytest.raises(SampleError, match="max_sample_bytes is 4,194,304"):
        decode_bytes(bytes(data), tmp_path)


@pytest.mark.parametrize("extra", [b"\0", b"garbage"])
def test_bytes_after_the_voxels_are_refused(extra: bytes, tmp_path: Path) -> None:
    whole = make_image().to_bytes()
    for content in (whole + extra, gzip.compress(whole + extra)):
        with pytest.raises(SampleError, match="more"):
            decode_bytes(content, tmp_path)


@pytest.mark.parametrize("is_compressed", [False, True])
def test_damage_gives_a_sample_error_or_an_array(is_compressed: bool, damage: Any) -> None:
    whole = make_image("i2", (6, 7, 8)).to_bytes()
    data = gzip.compress(whole) if is_compressed else whole
    stages = []
    for broken in damage(data, "scan.nii"):
        try:
            assert decode(broken, SMALL).array.nbytes <= SMALL.max_sample_bytes
        except SampleError as error:
            stages.append(error.stage)
    assert stages.count("decode") == len(stages) > 41  # every cut, at least


@pytest.mark.parametrize("image_class", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_a_flip_in_the_header_alone_is_survived(image_class: Any, damage: Any) -> None:
    data = image_class(np.zeros((6, 7, 8), np.int16), np.eye(4)).to_bytes()
    sizes, stages = [], []
    for broken in damage(data, "scan.nii", num_flips=400, num_cuts=1, span=540):
        try:
            sizes.append(decode(broken, SMALL).array.nbytes)
        except SampleError as error:
            stages.append(error.stage)
    assert set(stages) == {"decode"}
    assert len(stages) > 20  # a flip in the sizes, the type or the magic
    assert 0 < max(sizes) <= SMALL.max_sample_bytes
    assert len(sizes) > 100  # one in a description, or in a number that says something else now


def test_a_bomb_is_refused_before_it_is_inflated(tmp_path: Path) -> None:
    claim = make_image("u1", (2, 2, 2))
    data = bytearray(claim.to_bytes())
    struct.pack_into("<4h", data, 40, 3, 2048, 2048, 2048)  # 8 GiB
    bomb = gzip.compress(bytes(data) + bytes(1 << 24))
    tracemalloc.start()
    try:
        with pytest.raises(SampleError, match="8,589,934,944 bytes"):
            decode_bytes(bomb, tmp_path, "scan.nii.gz", Limits())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_claim_within_the_limits_allocates_only_what_is_there(tmp_path: Path) -> None:
    data = bytearray(make_image("u1", (2, 2, 2)).to_bytes())
    struct.pack_into("<4h", data, 40, 3, 1024, 1024, 1024)  # 1 GiB
    tracemalloc.start()
    try:
        with pytest.raises(SampleError, match="ends early: got 8 of 1,073,741,824"):
            decode_bytes(gzip.compress(bytes(data)), tmp_path, "scan.nii.gz", Limits())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
