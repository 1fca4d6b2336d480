"""One DICOM file: its header first, the claimed size against the limits, then its pixels.

pydicom reads and pylibjpeg decompresses. Whatever they raise for a broken file becomes a SampleError, and
their warnings are silenced: files in the field are full of harmless ones.
"""

from __future__ import annotations

import logging
import struct
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import numpy as np
import pydicom
from pydicom.encaps import generate_frames
from pydicom.pixels import apply_color_lut, pixel_array

from flatout.errors import SampleError
from flatout.types import Array, Limits

_PREAMBLE_BYTES = 128
_PREFIX = b"DICM"
_DEFLATED = b"1.2.840.10008.1.2.1.99"
_JPEG_2000 = ("1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91", "1.2.840.10008.1.2.4.20")
_SIZE_MARKER = b"\xff\x4f\xff\x51"
_BITS = (1, 8, 16, 32, 64)


@contextmanager
def as_sample_error(what: str) -> Iterator[None]:
    """A block in which pydicom is used: it stays silent, and whatever it raises is a SampleError."""
    logger = logging.getLogger("pydicom")
    was_propagated, logger.propagate = logger.propagate, False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except SampleError:
            raise
        except BaseException as error:  # the parsers raise whatever a broken file makes of them
            # A panic of the RLE decoder, which is written in Rust, is no Exception.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise SampleError("decode", f"{what}: {reason}") from error
        finally:
            logger.propagate = was_propagated


def is_dicom(data: bytes) -> bool:
    """Whether a file that starts with these bytes (132 or more) says that it is DICOM."""
    return data[_PREAMBLE_BYTES : _PREAMBLE_BYTES + len(_PREFIX)] == _PREFIX


def read_dataset(data: bytes, name: str, tags: Sequence[str] | None = None) -> Any:
    """The bytes of a DICOM file -> its dataset; with `tags` only these, and nothing from the pixels on.

    Raises:
        SampleError: it is no DICOM file, is damaged, or is deflated as a whole.
    """
    if not is_dicom(data):
        raise SampleError("decode", f"{name} is no DICOM file: it lacks the prefix DICM")
    if _DEFLATED in data:
        # pydicom would inflate the whole of it at once, however large that is.
        raise SampleError("decode", f"{name} is deflated as a whole; rewrite it uncompressed")
    with as_sample_error(f"{name} cannot be read as DICOM"):
        return pydicom.dcmread(
            BytesIO(data),
            specific_tags=None if tags is None else list(tags),
            stop_before_pixels=tags is not None,
        )


def read_number(dataset: Any, keyword: str, name: str, default: float | None = None) -> float:
    """One finite number of the header.

    Raises:
        SampleError: it is missing and has no default, or is no finite number.
    """
    numbers = read_numbers(dataset, keyword, 1, name)
    if numbers is not None:
        return numbers[0]
    if default is None:
        raise SampleError("decode", f"{name} has no {keyword}")
    return default


def read_numbers(dataset: Any, keyword: str, count: int, name: str) -> tuple[float, ...] | None:
    """So many finite numbers of the header; None where the element is missing or empty.

    Raises:
        SampleError: they are not `count` finite numbers.
    """
    with as_sample_error(f"{name}: {keyword} is not readable"):
        value = dataset.get(keyword)
        if value is None or (isinstance(value, str | Sequence) and not len(value)):
            return None
        parts = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        numbers = tuple(float(part) for part in parts)
    if len(numbers) != count or not np.isfinite(numbers).all():
        raise SampleError("decode", f"{name}: {keyword} is {numbers}; wanted {count} finite numbers")
    return numbers


def pixel_shape(dataset: Any, limits: Limits, name: str) -> tuple[int, int, int, int]:
    """Frames, rows, columns and samples a pixel that the header claims, within the limits.

    Raises:
        SampleError: a number is missing or impossible, or together they are more than the limits allow.
    """
    frames = int(read_number(dataset, "NumberOfFrames", name, default=1)) or 1
    rows, columns = (int(read_number(dataset, keyword, name)) for keyword in ("Rows", "Columns"))
    samples = int(read_number(dataset, "SamplesPerPixel", name, default=1))
    bits = int(read_number(dataset, "BitsAllocated", name))
    if min(frames, rows, columns) < 1 or samples not in (1, 3) or bits not in _BITS:
        raise SampleError(
            "decode",
            f"{name} claims {frames} frames of {rows} x {columns} pixels, {samples} samples of {bits} bits",
        )
    num_bytes = frames * rows * columns * samples * max(bits // 8, 1)
    if num_bytes > limits.max_sample_bytes:
        raise SampleError(
            "decode",
            f"{name} claims {num_bytes:,} bytes of pixels; max_sample_bytes is {limits.max_sample_bytes:,}",
        )
    return frames, rows, columns, samples


def read_pixels(dataset: Any, limits: Limits, name: str) -> Array:
    """The stored pixels, native byte order: (frames, rows, columns) or (frames, rows, columns, 3).

    YBR becomes RGB and a palette's indices its colours; nothing is rescaled.

    Raises:
        SampleError: the pixels are missing, damaged, compressed in a way no installed library reads, or
            of another size than the header claims.
    """
    frames, rows, columns, samples = pixel_shape(dataset, limits, name)
    with as_sample_error(f"the pixels of {name} cannot be decoded"):
        _check_codestreams(dataset, frames, (rows, columns, samples), name)
        pixels = pixel_array(dataset)
        if pixels.size != frames * rows * columns * samples:
            raise SampleError("decode", f"{name} decodes to {pixels.shape}; {(frames, rows, columns)} claimed")
        if dataset.get("PhotometricInterpretation") == "PALETTE COLOR":
            pixels = apply_color_lut(pixels, dataset)
            samples = 3
    shape = (frames, rows, columns) if samples == 1 else (frames, rows, columns, samples)
    native: Array = pixels.reshape(shape).astype(pixels.dtype.newbyteorder("="), copy=False)
    return native


def rescale(pixels: Array, slope: float, intercept: float) -> Array:
    """Stored values -> float32 of the modality's unit; the stored values where nothing changes them."""
    if (slope, intercept) == (1.0, 0.0):
        return pixels
    with np.errstate(over="ignore", invalid="ignore"):
        return (pixels * np.float64(slope) + intercept).astype(np.float32)


def _check_codestreams(dataset: Any, num_frames: int, claimed: tuple[int, int, int], name: str) -> None:
    """JPEG 2000 has a size of its own, which its decoder allocates: it must be the header's."""
    syntax = str(dataset.file_meta.get("TransferSyntaxUID", ""))
    if not syntax.startswith(_JPEG_2000):
        return
    for frame in generate_frames(dataset.PixelData, number_of_frames=num_frames):
        at = frame.find(_SIZE_MARKER)
        if at < 0:
            raise SampleError("decode", f"{name} holds no JPEG 2000 codestream")
        right, bottom, left, top = struct.unpack_from(">4I", frame, at + len(_SIZE_MARKER) + 4)
        (channels,) = struct.unpack_from(">H", frame, at + len(_SIZE_MARKER) + 36)
        if (bottom - top, right - left, channels) != claimed:
            raise SampleError(
                "decode",
                f"{name}: the JPEG 2000 stream has {bottom - top} x {right - left} pixels of {channels} "
                f"samples, the header claims {claimed[0]} x {claimed[1]} of {claimed[2]}",
            )
