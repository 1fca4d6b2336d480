"""Where each image plane of a DICOM file stands: from the file's own tags, or from those of its frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flatout.errors import SampleError
from flatout.source.dicom_file import pixel_shape, read_number, read_numbers
from flatout.types import Limits

TAGS = (
    "BitsAllocated",
    "Columns",
    "ImageOrientationPatient",
    "ImagePositionPatient",
    "NumberOfFrames",
    "PerFrameFunctionalGroupsSequence",
    "PhotometricInterpretation",
    "PixelSpacing",
    "RescaleIntercept",
    "RescaleSlope",
    "Rows",
    "SamplesPerPixel",
    "SeriesInstanceUID",
    "SharedFunctionalGroupsSequence",
    "SliceThickness",
    "SpacingBetweenSlices",
)
"""All that a header is asked for."""

_GROUP_OF = {
    "ImagePositionPatient": "PlanePositionSequence",
    "ImageOrientationPatient": "PlaneOrientationSequence",
    "PixelSpacing": "PixelMeasuresSequence",
    "SliceThickness": "PixelMeasuresSequence",
    "SpacingBetweenSlices": "PixelMeasuresSequence",
    "RescaleSlope": "PixelValueTransformationSequence",
    "RescaleIntercept": "PixelValueTransformationSequence",
}
"""The functional group that holds a tag of a frame."""


@dataclass(frozen=True, slots=True)
class Plane:
    """One image of a series."""

    name: str
    """The file."""
    frame: int
    series: str
    shape: tuple[int, int, int]
    """Rows, columns, samples."""
    photometric: str
    num_bytes: int
    position: tuple[float, ...] | None
    """Centre of the first pixel, in mm."""
    orientation: tuple[float, ...] | None
    """Direction along a row, then down a column."""
    spacing: tuple[float, ...] | None
    """Distance between rows, then between columns, in mm."""
    thickness: float
    slope: float
    intercept: float

    @property
    def is_placed(self) -> bool:
        return None not in (self.position, self.orientation, self.spacing)


def planes_of(dataset: Any, limits: Limits, name: str) -> list[Plane]:
    """The planes of a file's header: one, or one a frame of an enhanced multi-frame file.

    Raises:
        SampleError: a value is impossible, or frames do not say where they stand.
    """
    frames, rows, columns, samples = pixel_shape(dataset, limits, name)
    groups = dataset.get("PerFrameFunctionalGroupsSequence") or []
    if frames > 1 and len(groups) != frames:
        raise SampleError(
            "decode",
            f"{name} has {frames} frames and positions of {len(groups)}; only enhanced files that place each "
            "frame make a volume",
        )
    shared = list(dataset.get("SharedFunctionalGroupsSequence") or [])
    num_bytes = rows * columns * samples * max(int(read_number(dataset, "BitsAllocated", name)) // 8, 1)
    planes = []
    for frame in range(frames):
        places = [*(groups[frame : frame + 1]), *shared[:1]]
        tags = {tag: _find(dataset, places, tag, name) for tag in _GROUP_OF}
        spacing = tags["PixelSpacing"]
        if spacing is not None and min(spacing) <= 0:
            raise SampleError("decode", f"{name}: PixelSpacing is {spacing}")
        planes.append(
            Plane(
                name=name,
                frame=frame,
                series=str(dataset.get("SeriesInstanceUID", "")),
                shape=(rows, columns, samples),
                photometric=str(dataset.get("PhotometricInterpretation", "")),
                num_bytes=num_bytes,
                position=tags["ImagePositionPatient"],
                orientation=_unit_axes(tags["ImageOrientationPatient"], name),
                spacing=spacing,
                thickness=_thickness(tags),
                slope=(tags["RescaleSlope"] or (1.0,))[0],
                intercept=(tags["RescaleIntercept"] or (0.0,))[0],
            )
        )
    return planes


_COUNTS = {"ImagePositionPatient": 3, "ImageOrientationPatient": 6, "PixelSpacing": 2}


def _find(dataset: Any, places: list[Any], tag: str, name: str) -> tuple[float, ...] | None:
    """The numbers of a tag: of the frame, of all frames, or of the file."""
    count = _COUNTS.get(tag, 1)
    for place in places:
        for item in place.get(_GROUP_OF[tag]) or []:
            numbers = read_numbers(item, tag, count, name)
            if numbers is not None:
                return numbers
    return read_numbers(dataset, tag, count, name)


def _unit_axes(orientation: tuple[float, ...] | None, name: str) -> tuple[float, ...] | None:
    """The orientation, checked to be two unit vectors at a right angle."""
    if orientation is None:
        return None
    along, down = orientation[:3], orientation[3:]
    products = [
        sum(a * b for a, b in zip(*pair, strict=True)) for pair in ((along, along), (down, down), (along, down))
    ]
    if max(abs(products[0] - 1), abs(products[1] - 1), abs(products[2])) > 1e-2:
        raise SampleError(
            "decode", f"{name}: ImageOrientationPatient is {orientation}; wanted two unit vectors"
        )
    return orientation


def _thickness(tags: dict[str, tuple[float, ...] | None]) -> float:
    """Depth of a slice that stands alone."""
    found = tags["SpacingBetweenSlices"] or tags["SliceThickness"] or (1.0,)
    return abs(found[0]) or 1.0
