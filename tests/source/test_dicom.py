"""DICOM series and single images: right where the tags are right, refused with a reason where they are not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from flatout.errors import SampleError
from flatout.source.dicom import decode_series, decode_slice
from flatout.source.files import SourceFile
from flatout.types import Array, Decoded, Limits

PACKAGED = Path(pydicom.__file__).parent / "data" / "test_files"
SERIES = generate_uid(entropy_srcs=["series"])
AXIAL = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]


def make_slice(pixels: Array, position: Any = (0.0, 0.0, 0.0), **tags: Any) -> FileDataset:
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.2"
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=[str(position)])
    dataset = FileDataset("", {}, file_meta=meta, preamble=bytes(128))
    dataset.SeriesInstanceUID = SERIES
    dataset.Rows, dataset.Columns = pixels.shape[-2:]
    dataset.SamplesPerPixel = 1
    dataset.PhotometricInterpretation = "MONOCHROME2"
    dataset.BitsAllocated = dataset.BitsStored = 8 * pixels.itemsize
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
    dataset.ImagePositionPatient = None if position is None else [float(value) for value in position]
    dataset.ImageOrientationPatient = AXIAL
    dataset.PixelSpacing = [0.5, 0.75]
    for name, value in tags.items():
        setattr(dataset, name, value)
    dataset.PixelData = pixels.tobytes()
    return dataset


def ramp(at: int, rows: int = 4, columns: int = 5) -> Array:
    return (np.arange(rows * columns).reshape(rows, columns) + 100 * at).astype(np.int16)


def write_series(
    folder: Path, count: int = 5, change: Callable[[int, FileDataset], None] | None = None
) -> Path:
    """Slices 2 mm apart, in files whose names say nothing of their order."""
    folder.mkdir(exist_ok=True)
    for at in range(count):
        dataset = make_slice(ramp(at), (0, 0, 2.0 * at))
        if change:
            change(at, dataset)
        dataset.save_as(folder / f"{(7 * at + 3) % 11:02d}.dcm")
    return folder


def series(folder: Path, limits: Limits = Limits()) -> Decoded:  # noqa: B008
    return decode_series(SourceFile.whole(folder), limits)


def image(path: Path, limits: Limits = Limits()) -> Array:  # noqa: B008
    return decode_slice(SourceFile.whole(path), limits).array


def saved(dataset: FileDataset, folder: Path) -> Path:
    dataset.save_as(folder / "image.dcm")
    return folder / "image.dcm"


def set_at(which: int, **tags: Any) -> Callable[[int, FileDataset], None]:
    def change(at: int, dataset: FileDataset) -> None:
        if at == which:
            for name, value in tags.items():
                setattr(dataset, name, value)

    return change


def test_slices_are_sorted_by_place_and_axes_are_columns_rows_slices(tmp_path: Path) -> None:
    found = series(write_series(tmp_path / "ct"))
    assert found.array.shape == (5, 4, 5)
    assert found.array.dtype == np.int16
    for at in range(5):
        np.testing.assert_array_equal(found.array[:, :, at], ramp(at).T)
    np.testing.assert_allclose(
        found.affine,
        [[-0.75, 0, 0, 0], [0, -0.5, 0, 0], [0, 0, 2, 0], [0, 0, 0, 1]],
        atol=1e-12,  # type: ignore[arg-type]
    )


@settings(max_examples=25, deadline=None)
@given(angles=st.tuples(*[st.floats(-3, 3)] * 3), step=st.floats(0.5, 5.0), is_reversed=st.booleans())
def test_every_voxel_stands_where_its_slice_says(
    angles: tuple[float, ...], step: float, is_reversed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rotation = nibabel.eulerangles.euler2mat(*angles)
    along, down, normal = rotation.T
    folder = tmp_path_factory.mktemp("oblique")
    origin = np.array([3.0, -4.0, 5.0])
    places = [origin + normal * step * at for at in range(3)]
    for at, place in enumerate(reversed(places) if is_reversed else places):
        pixels = np.zeros((4, 5), np.int16)
        pixels[1, 2] = 1 + (2 - at if is_reversed else at)  # row 1, column 2
        tags = {"ImageOrientationPatient": [round(float(v), 12) for v in (*along, *down)]}
        make_slice(pixels, [round(float(v), 10) for v in place], **tags).save_as(folder / f"{at}.dcm")
    found = series(folder)
    assert found.affine is not None
    for at in range(3):
        voxel = np.argwhere(found.array == at + 1)[0]
        world = found.affine @ [*voxel, 1]
        wanted = places[at] + along * 0.75 * 2 + down * 0.5 * 1
        np.testing.assert_allclose(world[:3] * [-1, -1, 1], wanted, atol=1e-4)


def test_a_real_series_is_read(data_dir: Path) -> None:
    found = series(data_dir / "dicom_series_torchio")
    assert found.array.shape == (88, 128, 17)
    assert found.affine is not None
    np.testing.assert_allclose(np.diag(found.affine), [2, 2, 2, 1], atol=1e-6)
    first = pydicom.dcmread(data_dir / "dicom_series_torchio" / "IMG0001.dcm")
    place = found.affine @ [0, 0, 0, 1]
    positions = [
        pydicom.dcmread(path, stop_before_pixels=True).ImagePositionPatient
        for path in sorted((data_dir / "dicom_series_torchio").glob("*.dcm"))
    ]
    lowest = min(positions, key=lambda position: position[2])
    np.testing.assert_allclose(place[:3], np.multiply(lowest, [-1, -1, 1]), atol=1e-4)
    slices = [found.array[:, :, at] for at in range(17)]
    assert any(np.array_equal(plane, first.pixel_array.T) for plane in slices)


def test_each_slice_has_its_own_scale(tmp_path: Path) -> None:
    def change(at: int, dataset: FileDataset) -> None:
        dataset.RescaleSlope, dataset.RescaleIntercept = str(1 + at), "-1024"

    found = series(write_series(tmp_path / "pet", change=change)).array
    assert found.dtype == np.float32
    for at in range(5):
        np.testing.assert_array_equal(found[:, :, at], ramp(at).T * (1.0 + at) - 1024)


def test_what_is_no_slice_is_left_alone(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "ct")
    (folder / "README.txt").write_text("hello")
    (folder / ".hidden").write_bytes(b"x" * 200)
    (folder / "more").mkdir()
    shutil.copy(folder / "03.dcm", folder / "more" / "copy.dcm")
    shutil.copy(folder / "03.dcm", folder / "DICOMDIR")
    assert series(folder).array.shape == (5, 4, 5)


@pytest.mark.parametrize("content", [b"", b"not a slice", bytes(500)])
def test_a_broken_file_called_like_a_slice_is_no_gap(content: bytes, tmp_path: Path) -> None:
    folder = write_series(tmp_path / "ct")
    (folder / "last.dcm").write_bytes(content)
    with pytest.raises(SampleError, match=r"last\.dcm is called like a slice"):
        series(folder)


def test_links_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "ct")
    (folder / "03.dcm").rename(tmp_path / "elsewhere.dcm")
    (folder / "03.dcm").symlink_to(tmp_path / "elsewhere.dcm")
    with pytest.raises(SampleError, match=r"03\.dcm is a link"):
        series(folder)
    (tmp_path / "elsewhere.dcm").unlink()
    with pytest.raises(SampleError, match=r"03\.dcm"):
        series(folder)


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ({"SeriesInstanceUID": "1.2.3"}, "differ in SeriesInstanceUID"),
        ({"ImageOrientationPatient": [1, 0, 0, 0, 0, 1]}, "differ in ImageOrientationPatient"),
        ({"PixelSpacing": [0.5, 0.8]}, "differ in PixelSpacing"),
        ({"PhotometricInterpretation": "MONOCHROME1"}, "differ in PhotometricInterpretation"),
        ({"Rows": 2, "Columns": 10}, "differ in size"),
    ],
)
def test_mixed_slices_are_refused_by_name(tags: dict[str, Any], reason: str, tmp_path: Path) -> None:
    folder = write_series(tmp_path / "ct", change=set_at(1, **tags))
    with pytest.raises(SampleError, match=reason) as caught:
        series(folder)
    assert "10.dcm" in caught.value.reason
    assert caught.value.stage == "decode"


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        ([0, 0, 4.0], r"10\.dcm and 06\.dcm show the same place|06\.dcm and 10\.dcm show the same place"),
        ([0, 0, 2.5], "slices are 2.000 mm apart, but"),
        ([0, 3.0, 2.0], "3.000 mm beside the line"),
        ([0, 0, -2.0], "4.000: some are missing"),
        (None, "ImagePositionPatient, ImageOrientationPatient or PixelSpacing is missing"),
    ],
)
def test_misplaced_slices_are_refused(position: Any, reason: str, tmp_path: Path) -> None:
    def change(at: int, dataset: FileDataset) -> None:
        if at == 1:
            dataset.ImagePositionPatient = position

    with pytest.raises(SampleError, match=reason):
        series(write_series(tmp_path / "ct", change=change))


def test_a_missing_slice_is_a_gap(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "ct")
    (folder / "06.dcm").unlink()
    with pytest.raises(SampleError, match=r"10\.dcm and 02\.dcm are 4\.000: some are missing"):
        series(folder)


@pytest.mark.parametrize("content", [b"", b"x" * 400, None], ids=["empty", "noise", "cut"])
@pytest.mark.parametrize("name", ["IM{:04d}", "1.2.840.{}", "{}"])
def test_the_last_slice_is_missed_even_without_a_suffix(
    name: str, content: bytes | None, tmp_path: Path
) -> None:
    folder = write_series(tmp_path / "ct")
    for at, number in enumerate((3, 10, 6, 2, 9)):
        (folder / f"{number:02d}.dcm").rename(folder / name.format(at))
    for other in ("LICENSE", "notes.txt", "CHECKSUMS"):
        (folder / other).write_text("hello")
    assert series(folder).array.shape[2] == 5
    last = folder / name.format(4)
    last.write_bytes(last.read_bytes()[:100] if content is None else content)
    with pytest.raises(SampleError, match=f"{last.name} is called like a slice but is (empty|no DICOM)"):
        series(folder)


def test_slices_named_by_letters_are_missed_too(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "ct")
    for letter, number in zip("abcde", (3, 10, 6, 2, 9), strict=True):
        (folder / f"{number:02d}.dcm").rename(folder / letter)
    (folder / "e").write_bytes(b"")
    with pytest.raises(SampleError, match="e is called like a slice but is empty"):
        series(folder)


@pytest.mark.parametrize(("first", "second"), [("u1", "u2"), ("i2", "u2"), ("u2", "i2"), ("u2", "u1")])
def test_pixels_of_two_kinds_are_refused_unless_they_are_rescaled(
    first: str, second: str, tmp_path: Path
) -> None:
    """Stored as the first slice's kind, 200 of 16 bits and 40,000 would be others."""

    def write(folder: Path, **tags: Any) -> Path:
        folder.mkdir()
        for at, kind in enumerate((first, second)):
            pixels = np.full((4, 5), 200 if "1" in kind else 40_000 if kind == "u2" else -5, kind)
            make_slice(pixels, (0, 0, 2.0 * at), **tags).save_as(folder / f"{at}.dcm")
        return folder

    with pytest.raises(SampleError, match=r"the slices differ in their pixels: 0\.dcm has .* 1\.dcm"):
        series(write(tmp_path / "plain"))
    found = series(write(tmp_path / "rescaled", RescaleSlope="1", RescaleIntercept="-1000")).array
    assert found.dtype == np.float32
    assert set(np.unique(found)) <= {-800.0, 39_000.0, -1005.0}


def test_rounded_positions_are_even_enough(tmp_path: Path) -> None:
    def change(at: int, dataset: FileDataset) -> None:
        dataset.ImagePositionPatient = [0, 0, round(at * 0.625, 2)]

    found = series(write_series(tmp_path / "ct", change=change))
    assert found.affine is not None
    assert found.affine[2, 2] == pytest.approx(0.625, abs=0.01)


def test_a_tilted_gantry_shows_in_the_affine(tmp_path: Path) -> None:
    def change(at: int, dataset: FileDataset) -> None:
        dataset.ImagePositionPatient = [0, 0.5 * at, 2.0 * at]

    found = series(write_series(tmp_path / "ct", change=change))
    assert found.affine is not None
    np.testing.assert_allclose(found.affine[:3, 2], [0, -0.5, 2])


def test_one_slice_needs_no_neighbours(tmp_path: Path) -> None:
    def thick(at: int, dataset: FileDataset) -> None:
        dataset.SliceThickness = "3"

    found = series(write_series(tmp_path / "one", 1, thick))
    assert found.array.shape == (5, 4, 1)
    assert found.affine is not None
    assert found.affine[2, 2] == 3

    def lost(at: int, dataset: FileDataset) -> None:
        del dataset.ImagePositionPatient

    assert series(write_series(tmp_path / "lost", 1, lost)).affine is None


def test_a_folder_without_slices_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="holds no DICOM image") as caught:
        series(tmp_path)
    assert caught.value.stage == "find"
    with pytest.raises(SampleError):
        series(tmp_path / "missing")


def enhanced(count: int = 4) -> FileDataset:
    dataset = make_slice(np.stack([ramp(at) for at in range(count)]))
    dataset.NumberOfFrames = count
    for name in ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"):
        delattr(dataset, name)
    shared, measures, orientation, scale = Dataset(), Dataset(), Dataset(), Dataset()
    measures.PixelSpacing = [0.5, 0.75]
    orientation.ImageOrientationPatient = AXIAL
    scale.RescaleSlope, scale.RescaleIntercept = "2", "-10"
    shared.PixelMeasuresSequence = Sequence([measures])
    shared.PlaneOrientationSequence = Sequence([orientation])
    shared.PixelValueTransformationSequence = Sequence([scale])
    dataset.SharedFunctionalGroupsSequence = Sequence([shared])
    frames = []
    for at in range(count):
        frame, place = Dataset(), Dataset()
        place.ImagePositionPatient = [0, 0, -3.0 * at]
        frame.PlanePositionSequence = Sequence([place])
        frames.append(frame)
    dataset.PerFrameFunctionalGroupsSequence = Sequence(frames)
    return dataset


def test_an_enhanced_file_is_a_series_by_itself(tmp_path: Path) -> None:
    saved(enhanced(), tmp_path)
    found = series(tmp_path)
    assert found.array.shape == (5, 4, 4)
    np.testing.assert_array_equal(found.array[:, :, 3], ramp(0).T * 2.0 - 10)  # the first frame is the highest
    assert found.affine is not None
    np.testing.assert_allclose(found.affine[:3, 2:], [[0, 0], [0, 0], [3, -9]])


def test_frames_without_a_place_are_refused(tmp_path: Path) -> None:
    dataset = enhanced()
    del dataset.PerFrameFunctionalGroupsSequence
    saved(dataset, tmp_path)
    with pytest.raises(SampleError, match="4 frames and positions of 0"):
        series(tmp_path)
    shutil.copy(PACKAGED / "rtdose.dcm", tmp_path / "image.dcm")
    with pytest.raises(SampleError, match="15 frames"):
        series(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["MR_small_RLE", "MR_small_jp2klossless", "MR_small_bigendian", "MR_small_implicit", "MR_small_expb"],
)
def test_every_transfer_syntax_gives_the_same_pixels(name: str) -> None:
    np.testing.assert_array_equal(image(PACKAGED / f"{name}.dcm"), image(PACKAGED / "MR_small.dcm"))


def test_a_series_may_be_compressed(tmp_path: Path) -> None:
    shutil.copy(PACKAGED / "MR_small_RLE.dcm", tmp_path)
    np.testing.assert_array_equal(series(tmp_path).array[:, :, 0], image(PACKAGED / "MR_small.dcm").T)


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("CT_small", (128, 128), np.float32),
        ("693_J2KI", (512, 512), np.float32),
        ("examples_overlay", (300, 484), np.uint16),
        ("examples_rgb_color", (240, 320, 3), np.uint8),
        ("examples_palette", (350, 800, 3), np.uint16),
        ("SC_rgb_jpeg_dcmtk", (100, 100, 3), np.uint8),
        ("SC_ybr_full_422_uncompressed", (100, 100, 3), np.uint8),
        ("SC_rgb_rle_16bit", (100, 100, 3), np.uint16),
        ("examples_jpeg2k", (480, 640, 3), np.uint8),
    ],
)
def test_packaged_images_are_read(name: str, shape: tuple[int, ...], dtype: Any) -> None:
    found = image(PACKAGED / f"{name}.dcm")
    assert found.shape == shape
    assert found.dtype == dtype


def test_values_are_rescaled_to_the_modalitys_unit() -> None:
    stored = pydicom.dcmread(PACKAGED / "CT_small.dcm").pixel_array
    np.testing.assert_array_equal(image(PACKAGED / "CT_small.dcm"), stored - 1024.0)


@pytest.mark.parametrize(
    ("dtype", "bits", "wanted"),
    [(np.uint16, 12, [4095, 4094, 0]), (np.uint16, 16, [65535, 65534, 61440]), (np.int16, 16, [-1, -2, -4096])],
)
def test_monochrome1_is_inverted(dtype: Any, bits: int, wanted: list[int], tmp_path: Path) -> None:
    pixels = np.array([[0, 1, 4095]], dtype)
    tags = {"PhotometricInterpretation": "MONOCHROME1", "BitsStored": bits, "HighBit": bits - 1}
    found = image(saved(make_slice(pixels, **tags), tmp_path))
    assert found.dtype == dtype
    assert found.tolist() == [wanted]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("MR_truncated", "less than expected"),
        ("rtdose", "15 frames; an image field wants one"),
        ("image_dfl", "deflated as a whole"),
        ("MR_small_jpeg_ls_lossless", "cannot be decoded"),
        ("JPEG2000-embedded-sequence-delimiter", "the header claims 1024 x 256"),
        ("rtplan", "has no Rows"),
        ("no_meta", "lacks the prefix DICM"),
        ("badVR", "NumberOfFrames is not readable"),
    ],
)
def test_what_cannot_be_read_says_why(name: str, reason: str) -> None:
    with pytest.raises(SampleError, match=reason) as caught:
        image(PACKAGED / f"{name}.dcm")
    assert caught.value.stage == "decode"


@pytest.mark.parametrize("path", sorted(PACKAGED.glob("*.dcm")), ids=lambda path: path.name)
def test_every_packaged_file_gives_an_array_or_a_sample_error(path: Path) -> None:
    try:
        assert image(path).ndim in (2, 3)
    except SampleError as error:
        assert error.reason  # noqa: PT017


@pytest.mark.parametrize("name", ["MR_small", "MR_small_RLE", "MR_small_jp2klossless", "SC_rgb_small_odd_jpeg"])
def test_damage_gives_a_sample_error_or_an_array(name: str, damage: Any) -> None:
    limits = Limits(max_sample_bytes=1 << 24)
    data = (PACKAGED / f"{name}.dcm").read_bytes()
    stages = []
    for broken in [*damage(data, "a.dcm", num_cuts=20), *damage(data, "a.dcm", num_cuts=1, seed=1, span=1700)]:
        try:
            assert decode_slice(broken, limits).array.nbytes <= limits.max_sample_bytes
        except SampleError as error:
            stages.append(error.stage)
    assert stages.count("decode") == len(stages) > 15


def test_a_damaged_slice_breaks_only_its_series(damage: Any, tmp_path: Path) -> None:
    folder = write_series(tmp_path / "ct", 3)
    data = (folder / "10.dcm").read_bytes()
    for broken in damage(data, "10.dcm", num_flips=200, num_cuts=20):
        (folder / "10.dcm").write_bytes(broken.read_bytes(Limits()))
        try:
            assert series(folder).array.shape[2] == 3
        except SampleError as error:
            assert error.stage == "decode"  # noqa: PT017


@pytest.mark.parametrize(("rows", "columns"), [(65535, 65535), (4, 65535), (0, 5), (5, 4)])
def test_a_lying_size_is_refused(rows: int, columns: int, tmp_path: Path) -> None:
    dataset = make_slice(np.zeros((4, 4), np.int16), Rows=rows, Columns=columns)
    for read in (lambda: image(saved(dataset, tmp_path)), lambda: series(tmp_path)):
        with pytest.raises(SampleError):
            read()


def test_the_sum_of_a_series_is_limited(tmp_path: Path) -> None:
    folder = tmp_path / "ct"
    folder.mkdir()
    for at in range(3):
        make_slice(np.zeros((40, 50), np.int16), (0, 0, at)).save_as(folder / f"{at}.dcm")
    with pytest.raises(SampleError, match=r"the series claims 12,000 bytes; max_sample_bytes is 11,999"):
        series(folder, Limits(max_sample_bytes=11_999))
    assert series(folder, Limits(max_sample_bytes=12_000)).array.shape == (50, 40, 3)


def test_frames_are_part_of_the_claim(tmp_path: Path) -> None:
    dataset = make_slice(np.zeros((4, 4), np.int16), NumberOfFrames=2**31 - 1)
    with pytest.raises(SampleError, match=r"claims 68,719,476,704 bytes"):
        image(saved(dataset, tmp_path))


def test_a_jpeg_2000_stream_larger_than_its_header_is_refused(tmp_path: Path) -> None:
    data = bytearray((PACKAGED / "MR_small_jp2klossless.dcm").read_bytes())
    at = data.index(b"\xff\x4f\xff\x51") + 8
    data[at : at + 8] = (100_000).to_bytes(4, "big") * 2
    (tmp_path / "bomb.dcm").write_bytes(bytes(data))
    with pytest.raises(SampleError, match="100000 x 100000 pixels of 1 samples, the header claims 64 x 64"):
        image(tmp_path / "bomb.dcm")


def test_a_member_of_an_archive_is_read_in_place(tmp_path: Path) -> None:
    member = (PACKAGED / "MR_small.dcm").read_bytes()
    path = tmp_path / "images.tar"
    path.write_bytes(b"before" + member + b"after")
    found = decode_slice(SourceFile(path, "a.dcm", offset=6, size=len(member)), Limits())
    np.testing.assert_array_equal(found.array, image(PACKAGED / "MR_small.dcm"))
