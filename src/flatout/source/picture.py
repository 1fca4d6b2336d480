"""PNG, JPEG, TIFF and BMP through Pillow: the claimed size against the limits first, then the pixels.

What becomes of each way to store a picture:

    grey of 8, 16 or 32 bits, float     (H, W) of uint8, uint16, int32 or float32
    1 bit                               (H, W) of uint8, 0 and 255
    RGB, CMYK, YCbCr                    (H, W, 3) of uint8; Pillow reads 16-bit colour as 8 bits
    palette                             (H, W, 3) of uint8; the indices are kept for masks
    alpha                               dropped

The orientation that a camera noted (EXIF) is applied. A file of several pages or frames is refused; of a
camera's JPEG with previews (MPO) the picture itself is taken.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from typing import IO, Any

import numpy as np
from isal import isal_zlib
from isal.isal_zlib import crc32
from PIL import Image, ImageOps
from PIL.BmpImagePlugin import BmpImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import jpeg_factory
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from flatout.errors import SampleError
from flatout.source.files import SourceFile
from flatout.types import Array, Decoded, Limits

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_NUM_PREFIX_BYTES = 16
_ORIENTATION_TAG = 0x0112
_BITS_TAG = 258
_SAMPLE_FORMAT_TAG = 339
_UNSIGNED, _SIGNED = 1, 2
_KEPT_MODES = {"L": "u1", "RGB": "u1", "I": "i4", "F": "f4", "I;16": "u2", "I;16L": "u2", "I;16B": "u2"}
_GREY_MODES = {"1", "LA", "La"}
_PALETTE_MODES = {"P", "PA"}
_MAX_BYTES_A_PIXEL = 4
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Values a pixel, by the colour type of the header."""
_WHOLE = ((0, 0, 1, 1),)
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""First column and row of each pass over an interlaced PNG, and the steps between its columns and rows."""


def decode(file: SourceFile, limits: Limits) -> Decoded:
    """A picture -> (H, W) or (H, W, 3); `info["indices"]` holds the indices of a palette.

    Raises:
        SampleError: damaged, truncated, of another format, of several pages, or larger than the limits.
    """
    data = file.read_bytes(limits)
    if not data:
        raise SampleError("decode", f"{file.name} is empty; copy it again")
    with warnings.catch_warnings():
        # Pillow warns of odd metadata.
        warnings.simplefilter("ignore")
        try:
            return _decode(data, file.name, limits)
        except SampleError:
            raise
        except Exception as error:  # Pillow's plugins raise whatever a broken file makes of them
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise SampleError("decode", f"{file.name} cannot be read as a picture: {reason}") from error


def _decode(data: bytes, name: str, limits: Limits) -> Decoded:
    pixel_chunks = _check_png(data, name) if data.startswith(_PNG_SIGNATURE) else []
    with _open(data, name) as image:
        _check_size(image, name, limits)
        if image.format != "MPO" and getattr(image, "n_frames", 1) != 1:
            frames = getattr(image, "n_frames", 1)
            raise SampleError("decode", f"{name} has {frames} pages or frames; an image field wants one")
        if image.format == "TIFF":
            _check_tiff(image, name)
        if image.format == "PNG":
            _check_num_pixels(data, pixel_chunks, name)
        upright: Image.Image = image
        if image.getexif().get(_ORIENTATION_TAG, 1) != 1:
            upright = ImageOps.exif_transpose(image)
        upright.load()
        indices = _pixels(upright) if upright.mode in _PALETTE_MODES else None
        array = _pixels(_converted(upright))
    return Decoded(array=array, info={} if indices is None else {"indices": indices})


class _Tiff(TiffImageFile):
    """A TIFF whose size was checked already."""

    def load_prepare(self) -> None:
        if self._im is None:  # else Pillow compares it with a limit of its own
            self.im = Image.new(self.mode, self._tile_size, None).im
        super().load_prepare()


_READERS: dict[str, Callable[[IO[bytes]], ImageFile]] = {
    "PNG": PngImageFile,
    "JPEG": jpeg_factory,
    "TIFF": _Tiff,
    "BMP": BmpImageFile,
}
"""The only parsers that see a file, whatever its suffix."""


def _open(data: bytes, name: str) -> ImageFile:
    """The header alone, as `Image.open` reads it, but without MAX_IMAGE_PIXELS.

    That is one number for the user's whole process, and refuses 14,000 x 14,000 grey pixels: max_sample_bytes
    is what counts here.
    """
    for kind, read in _READERS.items():
        is_it = Image.OPEN[kind][1]
        if is_it is None or is_it(data[:_NUM_PREFIX_BYTES]):
            with suppress(SyntaxError, IndexError, TypeError, struct.error):  # as Pillow tells: not this one
                return read(BytesIO(data))
    raise SampleError("decode", f"{name} is no {', '.join(_READERS)} that can be read")


def _check_size(image: Image.Image, name: str, limits: Limits) -> None:
    num_bytes = image.width * image.height * max(_MAX_BYTES_A_PIXEL, len(image.getbands()))
    if num_bytes > limits.max_sample_bytes:
        raise SampleError(
            "decode",
            f"{name} claims {image.width} x {image.height} pixels, {num_bytes:,} bytes; "
            f"max_sample_bytes is {limits.max_sample_bytes:,}",
        )


def _check_png(data: bytes, name: str) -> list[memoryview]:
    """The chunks of pixels, all checksums compared of what makes up the picture; 0.01 ms for 46 KB.

    Pillow skips these checksums.
    """
    pixel_chunks: list[memoryview] = []
    view, start = memoryview(data), len(_PNG_SIGNATURE)
    kind = b""
    while kind != b"IEND":
        _check_reaches(data, start + 8, name)
        length, kind = struct.unpack_from(">I4s", data, start)
        end = start + 8 + length
        _check_reaches(data, end + 4, name)
        (wanted,) = struct.unpack_from(">I", data, end)
        is_critical = not kind[0] & 0x20
        if is_critical and crc32(view[start + 4 : end]) != wanted:
            raise SampleError(
                "decode", f"{name} is damaged: chunk {kind!r} at byte {start:,} fails its checksum"
            )
        if kind == b"IDAT":
            pixel_chunks.append(view[start + 8 : end])
        start = end + 4
    return pixel_chunks


def _check_num_pixels(data: bytes, pixel_chunks: list[memoryview], name: str) -> None:
    """Compare the bytes of pixels with what the header needs: Pillow adds black rows, or cuts off, in silence.

    To inflate them once more takes 9 to 18 % of what decoding takes. Some programs leave a few bytes behind the
    last row; a row more is a picture that the header cuts.
    """
    width, height, bits, colour, _, _, is_interlaced = struct.unpack_from(">2I5B", data, 16)
    wanted, row_bytes = 0, 1 + (width * bits * _PNG_CHANNELS[colour] + 7) // 8
    for left, top, step, row_step in _ADAM7 if is_interlaced else _WHOLE:
        num_columns, num_rows = -(-(width - left) // step), -(-(height - top) // row_step)
        if num_columns > 0 and num_rows > 0:
            wanted += num_rows * (1 + (num_columns * bits * _PNG_CHANNELS[colour] + 7) // 8)
    packed = pixel_chunks[0] if len(pixel_chunks) == 1 else b"".join(pixel_chunks)
    got = len(isal_zlib.decompressobj().decompress(packed, wanted + row_bytes))
    if not wanted <= got < wanted + row_bytes:
        more = "more" if got > wanted else f"{got:,}"
        raise SampleError(
            "decode",
            f"{name} contradicts itself: {more} bytes of pixels, {width} x {height} take {wanted:,}; save it "
            "again from its source",
        )


def _check_reaches(data: bytes, end: int, name: str) -> None:
    if end > len(data):
        raise SampleError(
            "decode",
            f"{name} is cut off or damaged: got {len(data):,} bytes, wanted {end:,} at least; copy it again",
        )


def _check_tiff(image: Any, name: str) -> None:
    """Refuse the two kinds of numbers that Pillow reads with a wrong sign."""
    sample_format = image.tag_v2.get(_SAMPLE_FORMAT_TAG, (1,))[0]
    num_bits = image.tag_v2.get(_BITS_TAG, (1,))[0]
    if (sample_format, num_bits) in ((_UNSIGNED, 32), (_SIGNED, 8)):
        sign = "unsigned" if sample_format == _UNSIGNED else "signed"
        raise SampleError("decode", f"{name} has {sign} {num_bits}-bit pixels; save it as 16-bit or float")


def _converted(image: Image.Image) -> Image.Image:
    """The picture in a mode that has an array of its own."""
    if image.mode in _KEPT_MODES:
        return image
    return image.convert("L" if image.mode in _GREY_MODES else "RGB")


def _pixels(image: Image.Image) -> Array:
    array: np.ndarray[Any, Any] = np.asarray(image)
    wanted = np.dtype(_KEPT_MODES.get(image.mode, "u1"))
    return array[..., 0] if image.mode == "PA" else array.astype(wanted, copy=False)
