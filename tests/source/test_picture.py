"""Pictures: every way to store one has its array, and nothing broken gets through as something else."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage
from PIL import Image, ImageFile

from flatout.errors import SampleError
from flatout.source.files import SourceFile
from flatout.source.picture import decode
from flatout.types import Array, Decoded, Limits

RGB = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
PICTURE = Image.fromarray(RGB)
SKIMAGE_DATA = Path(skimage.__file__).parent / "data"


def encode(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def decode_bytes(data: bytes, folder: Path, limits: Limits = Limits()) -> Decoded:  # noqa: B008
    path = folder / "picture.png"
    path.write_bytes(data)
    return decode(SourceFile.whole(path), limits)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def tiny_png(width: int, height: int, num_bits: int = 8) -> bytes:
    """A PNG of black pixels, whatever its size; 1000 times smaller than what it claims."""
    row_bytes = 1 + (width * num_bits + 7) // 8
    header = struct.pack(">2I5B", width, height, num_bits, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(min(row_bytes * height, 1 << 20)), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP"])
def test_lossless_colour_is_exact(kind: str, tmp_path: Path) -> None:
    found = decode_bytes(encode(PICTURE, kind), tmp_path)
    assert found.array.dtype == np.uint8
    assert found.info == {}
    np.testing.assert_array_equal(found.array, RGB)


@pytest.mark.parametrize(
    ("kind", "mode", "shape"),
    [
        ("PNG", "1", (6, 8)),
        ("PNG", "L", (6, 8)),
        ("PNG", "LA", (6, 8)),
        ("PNG", "RGBA", (6, 8, 3)),
        ("JPEG", "L", (6, 8)),
        ("JPEG", "RGB", (6, 8, 3)),
        ("JPEG", "CMYK", (6, 8, 3)),
        ("JPEG", "YCbCr", (6, 8, 3)),
        ("TIFF", "1", (6, 8)),
        ("TIFF", "LA", (6, 8)),
        ("TIFF", "CMYK", (6, 8, 3)),
        ("TIFF", "RGBA", (6, 8, 3)),
        ("BMP", "1", (6, 8)),
        ("BMP", "L", (6, 8)),
    ],
)
def test_each_mode_becomes_grey_or_rgb(kind: str, mode: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    found = decode_bytes(encode(PICTURE.convert(mode), kind), tmp_path).array
    assert found.shape == shape
    assert found.dtype == np.uint8


def test_one_bit_is_0_and_255(tmp_path: Path) -> None:
    found = decode_bytes(encode(PICTURE.convert("1")), tmp_path).array
    assert set(np.unique(found)) == {0, 255}


def test_alpha_is_dropped_without_blending(tmp_path: Path) -> None:
    alpha = np.dstack([RGB, np.zeros((6, 8), np.uint8)])
    np.testing.assert_array_equal(decode_bytes(encode(Image.fromarray(alpha)), tmp_path).array, RGB)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("dtype", ["uint16", "int32", "float32"])
def test_deep_grey_keeps_its_values(kind: str, dtype: str, tmp_path: Path) -> None:
    if kind == "PNG" and dtype != "uint16":
        pytest.skip("PNG holds at most 16 bits")
    array = np.arange(48).reshape(6, 8).astype(dtype) * 1000
    found = decode_bytes(encode(Image.fromarray(array), kind), tmp_path).array
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP"])
def test_a_palette_gives_colours_and_keeps_its_indices(kind: str, tmp_path: Path) -> None:
    indices = (np.arange(48).reshape(6, 8) % 3).astype(np.uint8)
    image = Image.fromarray(indices)
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    found = decode_bytes(encode(image, kind), tmp_path)
    np.testing.assert_array_equal(found.info["indices"], indices)
    np.testing.assert_array_equal(found.array, np.array([[10, 20, 30], [40, 50, 60], [70, 80, 90]])[indices])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_cameras_orientation_is_applied(orientation: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = decode_bytes(encode(PICTURE, "PNG", exif=exif), tmp_path).array
    turned = {
        1: RGB,
        2: RGB[:, ::-1],
        3: RGB[::-1, ::-1],
        4: RGB[::-1],
        5: RGB.transpose(1, 0, 2),
        6: np.rot90(RGB, -1),
        7: RGB.transpose(1, 0, 2)[::-1, ::-1],
        8: np.rot90(RGB),
    }
    np.testing.assert_array_equal(found, turned[orientation])


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_several_pages_are_refused(kind: str, tmp_path: Path) -> None:
    data = encode(PICTURE, kind, save_all=True, append_images=[PICTURE.rotate(90)])
    with pytest.raises(SampleError, match="2 pages or frames"):
        decode_bytes(data, tmp_path)


def test_of_a_cameras_jpeg_with_preview_the_picture_is_taken(tmp_path: Path) -> None:
    data = encode(PICTURE, "MPO", save_all=True, append_images=[PICTURE.resize((4, 3))])
    assert decode_bytes(data, tmp_path).array.shape == (6, 8, 3)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PPM", "JPEG2000"])
def test_other_formats_are_not_even_tried(kind: str, tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="is no PNG, JPEG, TIFF, BMP"):
        decode_bytes(encode(PICTURE, kind), tmp_path)


@pytest.mark.parametrize("dtype", ["int8", "uint32"])
def test_numbers_that_pillow_reads_with_a_wrong_sign_are_refused(dtype: str, tmp_path: Path) -> None:
    array = np.full((4, 4), 200 if dtype == "uint32" else -3, dtype)
    tags = {
        256: (3, 4),
        257: (3, 4),
        258: (3, 8 * array.itemsize),
        259: (3, 1),
        262: (3, 1),
        273: (4, 8),
        277: (3, 1),
        278: (3, 4),
        279: (4, array.nbytes),
        339: (3, 2 if dtype == "int8" else 1),
    }
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, (kind, value) in tags.items())
    data = struct.pack("<2sHI", b"II", 42, 8 + array.nbytes) + array.tobytes()
    with pytest.raises(SampleError, match="signed"):
        decode_bytes(data + struct.pack("<H", len(tags)) + entries + bytes(4), tmp_path)


@pytest.mark.parametrize(
    "path",
    sorted(path for path in SKIMAGE_DATA.glob("*") if path.suffix in (".png", ".jpg", ".tif")),
    ids=lambda path: path.name,
)
def test_real_pictures_are_read_as_pillow_reads_them(path: Path) -> None:
    if path.name.startswith("multipage"):
        with pytest.raises(SampleError):
            decode(SourceFile.whole(path), Limits())
        return
    found = decode(SourceFile.whole(path), Limits()).array
    with Image.open(path) as image:
        wanted = np.asarray(image.convert("RGB") if found.ndim == 3 else image.convert("L"))
    np.testing.assert_array_equal(found, wanted)


def test_real_medical_slices_are_read(data_dir: Path) -> None:
    for path in sorted((data_dir / "cmr_seg_sunnybrook").glob("*/*/*.png"))[::10]:
        assert decode(SourceFile.whole(path), Limits()).array.shape == (256, 256, 3)


def test_a_member_of_an_archive_is_read_in_place(tmp_path: Path) -> None:
    member = encode(PICTURE)
    path = tmp_path / "pictures.tar"
    path.write_bytes(b"before" + member + b"after")
    found = decode(SourceFile(path, "a.png", offset=6, size=len(member)), Limits())
    np.testing.assert_array_equal(found.array, RGB)


def natural(size: int = 48) -> Array:
    y, x = np.indices((size, size))
    return np.stack([(x * 5) % 256, (y * 5) % 256, (x + y) % 256], axis=-1).astype(np.uint8)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "tiff_adobe_deflate"}),
        ("BMP", {}),
    ],
)
def test_damage_gives_a_sample_error_or_an_array(kind: str, options: dict[str, Any], damage: Any) -> None:
    limits = Limits(max_sample_bytes=1 << 24)
    stages = []
    data = encode(Image.fromarray(natural()), kind, **options)
    name = f"picture.{kind.lower()}"
    for broken in [*damage(data, name), *damage(data, name, num_cuts=1, seed=1, span=200)]:
        try:
            assert decode(broken, limits).array.nbytes <= limits.max_sample_bytes
        except SampleError as error:
            stages.append(error.stage)
    assert stages.count("decode") == len(stages) > 20


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "BMP"])
def test_a_truncated_picture_is_refused(kind: str, tmp_path: Path) -> None:
    data = encode(Image.fromarray(natural()), kind)
    for kept in (0.3, 0.6, 0.9):
        with pytest.raises(SampleError):
            decode_bytes(data[: int(len(data) * kept)], tmp_path)


def test_one_flipped_bit_in_the_pixels_of_a_png_is_noticed(tmp_path: Path) -> None:
    data = bytearray(encode(Image.fromarray(natural())))
    data[data.index(b"IDAT") + 20] ^= 1
    with pytest.raises(SampleError, match=r"damaged: chunk b'IDAT' at byte 33"):
        decode_bytes(bytes(data), tmp_path)


@pytest.mark.parametrize("size", [(100_000, 100_000), (40_000, 14_000), (2**31 - 1, 1), (1, 2**31 - 1)])
def test_a_bomb_is_refused_before_it_is_inflated(size: tuple[int, int], tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(SampleError, match="max_sample_bytes is 2,147,483,648"):
            decode_bytes(tiny_png(*size), tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_the_limit_is_the_samples_own(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=r"claims 64 x 64 pixels, 16,384 bytes; max_sample_bytes is 10,000"):
        decode_bytes(tiny_png(64, 64), tmp_path, Limits(max_sample_bytes=10_000))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("JPEG", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "tiff_lzw", "tiffinfo": {0x0112: 6}}),
        ("BMP", {}),
    ],
)
@pytest.mark.parametrize("mode", ["RGB", "P"])
def test_max_sample_bytes_counts_and_not_pillows_own_limit(
    kind: str, options: dict[str, Any], mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "JPEG" and mode == "P":
        pytest.skip("JPEG has no palettes")
    data = encode(Image.fromarray(natural()).convert(mode), kind, **options)
    wanted = decode_bytes(data, tmp_path).array
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    np.testing.assert_array_equal(decode_bytes(data, tmp_path).array, wanted)
    assert Image.MAX_IMAGE_PIXELS == 100


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "BMP"])
def test_no_format_allocates_pixels_above_the_limit(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"compression": "tiff_deflate"} if kind == "TIFF" else {}
    data = encode(Image.new("1" if kind == "BMP" else "L", (100, 100)), kind, **options)
    monkeypatch.setattr(ImageFile.ImageFile, "load_prepare", lambda self: pytest.fail("pixels are allocated"))
    with pytest.raises(SampleError, match=r"claims 100 x 100 pixels, 40,000 bytes; max_sample_bytes is 9,999"):
        decode_bytes(data, tmp_path, Limits(max_sample_bytes=9_999))


def test_an_empty_file_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=r"^decode: picture\.png is empty; copy it again$"):
        decode_bytes(b"", tmp_path)


@pytest.mark.parametrize("kept", [12, 20, 40, 100, -1, -14])
def test_a_png_that_is_cut_off_is_called_so(kept: int, tmp_path: Path) -> None:
    data = encode(Image.fromarray(natural()))[:kept]
    with pytest.raises(
        SampleError, match=rf"png is cut off or damaged: got {len(data):,} bytes, wanted [\d,]+ "
    ):
        decode_bytes(data, tmp_path)


def test_pillow_itself_is_left_as_it_was(tmp_path: Path) -> None:
    before = Image.MAX_IMAGE_PIXELS
    with pytest.raises(SampleError):
        decode_bytes(tiny_png(100_000, 100_000), tmp_path)
    assert before == Image.MAX_IMAGE_PIXELS


def with_height(data: bytes, height: int) -> bytes:
    """A PNG whose header claims another height, with a checksum that fits."""
    content = bytearray(data[16:29])
    content[4:8] = struct.pack(">I", height)
    return data[:8] + chunk(b"IHDR", bytes(content)) + data[33:]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "I;16", "RGB", "RGBA"])
@pytest.mark.parametrize("height", [40, 20, 19])
def test_a_png_of_other_rows_than_it_claims_is_refused(mode: str, height: int, tmp_path: Path) -> None:
    grey = Image.fromarray(np.arange(37 * 20, dtype=np.uint16).reshape(20, 37))
    data = with_height(encode(grey if mode == "I;16" else grey.convert("L").convert(mode)), height)
    if height == 20:
        assert decode_bytes(data, tmp_path).array.shape[:2] == (20, 37)
    else:
        with pytest.raises(
            SampleError, match=r"contradicts itself: (more|[\d,]+) bytes of pixels, 37 x \d+ take"
        ):
            decode_bytes(data, tmp_path)


def test_a_few_bytes_behind_the_last_row_of_a_png_are_no_damage(tmp_path: Path) -> None:
    """Some programs leave them; libpng passes over them, too."""
    for num_more, is_damaged in ((3, False), (37, False), (38, True)):  # a row takes 38
        pixels = zlib.compress((b"\0" + b"\x07" * 37) * 20 + bytes(num_more))
        header = struct.pack(">2I5B", 37, 20, 8, 0, 0, 0, 0)
        data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
        if is_damaged:
            with pytest.raises(SampleError, match="more bytes of pixels"):
                decode_bytes(data, tmp_path)
        else:
            assert (decode_bytes(data, tmp_path).array == 7).all()


def interlaced_png(pixels: Array, num_bits: int = 8) -> bytes:
    """An Adam7 PNG of grey pixels."""
    raw = b""
    for left, top, step, row_step in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4),
                                      (1, 0, 2, 2), (0, 1, 1, 2)):  # fmt: skip
        for row in pixels[top::row_step, left::step]:
            raw += b"\0" + row.tobytes() if row.size else b""
    header = struct.pack(">2I5B", pixels.shape[1], pixels.shape[0], num_bits, 0, 0, 0, 1)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (5, 4), (8, 8), (20, 37)])
def test_an_interlaced_png_has_as_many_rows_as_it_claims(shape: tuple[int, int], tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(1, 255, shape, dtype=np.uint8)
    data = interlaced_png(pixels)
    np.testing.assert_array_equal(decode_bytes(data, tmp_path).array, pixels)
    with pytest.raises(SampleError, match="contradicts itself"):
        decode_bytes(with_height(data, shape[0] + 1), tmp_path)
