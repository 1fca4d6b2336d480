"""DICOM: a folder with one series -> a volume in RAS mm; one file with one image -> a picture.

A series is refused rather than repaired: its slices must agree in size, orientation and pixel spacing, and
stand in equal steps along a line. Nothing but the folder's own files is read: DICOMDIR is ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flatout.errors import SampleError
from flatout.source.dicom_file import (
    as_sample_error,
    is_dicom,
    pixel_shape,
    read_dataset,
    read_number,
    read_pixels,
    rescale,
)
from flatout.source.dicom_plane import TAGS, Plane, planes_of
from flatout.source.files import SourceFile
from flatout.source.series import SUFFIXES, is_dicom_name
from flatout.types import Array, Decoded, Limits

# Positions are written with few digits: steps may differ by 2 % of the slice distance, or by 0.01 mm.
_STEP_TOLERANCE = 0.02
_STEP_TOLERANCE_MM = 0.01
_ANGLE_TOLERANCE = 1e-3
_SPACING_TOLERANCE = 1e-3
_MAX_NAMED = 3


def decode_series(file: SourceFile, limits: Limits) -> Decoded:
    """A folder of DICOM slices (or with one enhanced multi-frame file) -> (X, Y, Z) and its affine.

    X runs along a row, Y down the columns, Z along the slice normal. Values are float32 of the modality's
    unit (HU) where slices are rescaled, else as stored.

    Raises:
        SampleError: nothing to read, several series, contradictory, duplicate, missing or uneven slices.
    """
    planes = [plane for path in _slice_files(file.path) for plane in _read_planes(path, limits)]
    if not planes:
        raise SampleError("find", f"{file.name} holds no DICOM image")
    _check_agreement(planes)
    num_bytes = sum(plane.num_bytes for plane in planes)
    if num_bytes > limits.max_sample_bytes:
        raise SampleError(
            "decode",
            f"the series claims {num_bytes:,} bytes; max_sample_bytes is {limits.max_sample_bytes:,}",
        )
    planes, affine = _placed(planes)
    return Decoded(array=_stack(planes, file.path, limits), affine=affine)


def decode_slice(file: SourceFile, limits: Limits) -> Decoded:
    """One DICOM file -> (H, W) or (H, W, 3), rescaled to the modality's unit; MONOCHROME1 is inverted.

    Raises:
        SampleError: damaged, without pixels, of several frames, or larger than the limits.
    """
    with as_sample_error(f"{file.name} cannot be decoded"):
        dataset = read_dataset(file.read_bytes(limits), file.name)
        num_frames = pixel_shape(dataset, limits, file.name)[0]
        if num_frames != 1:
            raise SampleError("decode", f"{file.name} has {num_frames} frames; an image field wants one")
        pixels = read_pixels(dataset, limits, file.name)[0]
        if str(dataset.get("PhotometricInterpretation", "")).strip() == "MONOCHROME1":
            pixels = _inverted(pixels, int(read_number(dataset, "BitsStored", file.name, 8 * pixels.itemsize)))
        slope = read_number(dataset, "RescaleSlope", file.name, 1.0)
        intercept = read_number(dataset, "RescaleIntercept", file.name, 0.0)
        return Decoded(array=rescale(pixels, slope, intercept))


def _inverted(pixels: Array, num_bits: int) -> Array:
    """Mirrored within the values that so many bits hold, so that the smallest becomes the largest."""
    num_bits = min(max(num_bits, 1), 8 * pixels.itemsize)
    mirror = -1 if pixels.dtype.kind == "i" else 2**num_bits - 1
    mirrored: Array = mirror - pixels.astype(np.int64)
    limits = np.iinfo(pixels.dtype)
    return np.clip(mirrored, limits.min, limits.max).astype(pixels.dtype)


def _slice_files(folder: Path) -> list[Path]:
    """The folder's DICOM files by name. Others are left alone, unless they are called like a slice.

    Raises:
        SampleError: one that is, and is not: a volume without its last slice looks like a whole one.
    """
    try:
        with os.scandir(folder) as entries:
            found = sorted((entry for entry in entries if not entry.is_dir()), key=lambda entry: entry.name)
    except OSError as error:
        raise SampleError("find", f"{folder}: {error.strerror or error}") from error
    paths: list[Path] = []
    others: list[str] = []
    for entry in found:
        path = Path(entry.path)
        if entry.name.upper() == "DICOMDIR" or entry.name.startswith("."):
            continue
        if not _starts_as_dicom(path):
            others.append(entry.name)
            continue
        if entry.is_symlink() and path.resolve().parent != folder.resolve():
            raise SampleError("find", f"{entry.name} is a link that leaves the folder of the series; copy it")
        paths.append(path)
    # Names of slices are numbered, or all are not: LICENSE beside IM0001 is none.
    are_numbered = all(_has_digit(path.name) for path in paths)
    for name in others:
        if name.lower().endswith(SUFFIXES) or (is_dicom_name(name) and (_has_digit(name) or not are_numbered)):
            state = "empty" if not (folder / name).stat().st_size else "no DICOM file"
            raise SampleError("decode", f"{name} is called like a slice but is {state}")
    return paths


def _has_digit(name: str) -> bool:
    return any(char.isdigit() for char in name)


def _starts_as_dicom(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return is_dicom(file.read(132))
    except OSError as error:
        raise SampleError("find", f"{path.name}: {error.strerror or error}") from error


def _read_planes(path: Path, limits: Limits) -> list[Plane]:
    with as_sample_error(f"the header of {path.name} cannot be read"):
        dataset = read_dataset(SourceFile.whole(path).read_bytes(limits), path.name, TAGS)
        return planes_of(dataset, limits, path.name)


def _check_agreement(planes: Sequence[Plane]) -> None:
    """Every plane against the first.

    Raises:
        SampleError: names what differs, both values, and the files.
    """
    checks: list[tuple[str, Callable[[Plane], Any], float | None]] = [
        ("SeriesInstanceUID", lambda plane: plane.series, None),
        ("size (rows, columns, samples)", lambda plane: plane.shape, None),
        ("PhotometricInterpretation", lambda plane: plane.photometric, None),
        ("ImageOrientationPatient", lambda plane: plane.orientation, _ANGLE_TOLERANCE),
        ("PixelSpacing", lambda plane: plane.spacing, _SPACING_TOLERANCE),
    ]
    for what, value_of, tolerance in checks:
        wanted = value_of(planes[0])
        others = [plane for plane in planes if not _is_equal(value_of(plane), wanted, tolerance)]
        if others:
            raise SampleError(
                "decode",
                f"the slices differ in {what}: {planes[0].name} has {wanted}, "
                f"{_named(others)} {value_of(others[0])}",
            )


def _is_equal(value: Any, wanted: Any, tolerance: float | None) -> bool:
    if tolerance is None or value is None or wanted is None:
        return bool(value == wanted)
    return bool(np.abs(np.subtract(value, wanted)).max() <= tolerance)


def _named(planes: Sequence[Plane]) -> str:
    names = list(dict.fromkeys(plane.name for plane in planes))
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def _placed(planes: Sequence[Plane]) -> tuple[list[Plane], Array | None]:
    """The planes along their normal, and the affine of the volume that they make."""
    unplaced = [plane for plane in planes if not plane.is_placed]
    if unplaced and len(planes) > 1:
        raise SampleError(
            "decode",
            f"{_named(unplaced)}: ImagePositionPatient, ImageOrientationPatient or PixelSpacing is missing, "
            "so the order of the slices is unknown",
        )
    if unplaced:
        return list(planes), None
    along, down = np.reshape(np.array(planes[0].orientation, dtype=np.float64), (2, 3))
    normal = np.cross(along, down)
    ordered = sorted(planes, key=lambda plane: float(np.dot(normal, plane.position or (0, 0, 0))))
    positions = np.array([plane.position for plane in ordered])
    step = normal * planes[0].thickness if len(ordered) == 1 else _even_step(ordered, positions, normal)
    row_mm, column_mm = planes[0].spacing or (1.0, 1.0)
    affine = np.eye(4)
    affine[:3] = np.stack([along * column_mm, down * row_mm, step, positions[0]], axis=1)
    affine[:2] *= -1  # DICOM's world points left and to the back, ours right and to the front
    return ordered, affine


def _even_step(planes: Sequence[Plane], positions: Array, normal: Array) -> Array:
    """From each slice to the next, which must be the same everywhere.

    Raises:
        SampleError: two slices at one place, a gap, or steps of different length or direction.
    """
    gaps = np.diff(positions @ normal)
    usual = float(np.median(gaps))
    tolerance = max(_STEP_TOLERANCE * usual, _STEP_TOLERANCE_MM)
    for at in np.flatnonzero(gaps <= _STEP_TOLERANCE_MM).tolist():
        raise SampleError(
            "decode",
            f"{planes[at].name} and {planes[at + 1].name} show the same place: two series, or time points",
        )
    for at in np.flatnonzero(np.abs(gaps - usual) > tolerance).tolist():
        raise SampleError(
            "decode",
            f"slices are {usual:.3f} mm apart, but {planes[at].name} and {planes[at + 1].name} are "
            f"{gaps[at]:.3f}: some are missing, or the spacing is uneven",
        )
    step: Array = (positions[-1] - positions[0]) / (len(positions) - 1)
    drift = np.abs(positions - positions[0] - np.outer(np.arange(len(positions)), step)).max(axis=1)
    for at in np.flatnonzero(drift > tolerance).tolist():
        raise SampleError(
            "decode", f"{planes[at].name} stands {drift[at]:.3f} mm beside the line of the others"
        )
    return step


def _stack(planes: Sequence[Plane], folder: Path, limits: Limits) -> Array:
    """The pixels of all planes as (columns, rows, planes), samples last."""
    is_rescaled = any((plane.slope, plane.intercept) != (1.0, 0.0) for plane in planes)
    volume: Array | None = None
    name, frames = "", np.empty(0)
    for at, plane in enumerate(planes):
        if plane.name != name:
            name = plane.name
            dataset = read_dataset(SourceFile.whole(folder / name).read_bytes(limits), name)
            frames = read_pixels(dataset, limits, name)
        pixels = rescale(frames[plane.frame], plane.slope, plane.intercept)
        if volume is None:
            volume = np.empty((len(planes), *pixels.shape), np.float32 if is_rescaled else pixels.dtype)
        # "same_kind" alone would let 16 bits wrap in a volume of 8, and unsigned ones in a signed one.
        fits = np.can_cast(pixels.dtype, volume.dtype, "same_kind" if is_rescaled else "no")
        if pixels.shape != volume.shape[1:] or not fits:
            raise SampleError(
                "decode",
                f"the slices differ in their pixels: {planes[0].name} has {volume.shape[1:]} {volume.dtype}, "
                f"{name} {pixels.shape} {pixels.dtype}",
            )
        volume[at] = pixels
    if volume is None:
        raise SampleError("decode", "the series has no planes")
    return np.moveaxis(volume, (0, 1, 2), (2, 1, 0))
