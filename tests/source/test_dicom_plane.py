"""Planes: where a slice or frame stands, from whichever tags say so."""

from __future__ import annotations

from typing import Any

import pytest
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence

from flatout.errors import SampleError
from flatout.source.dicom_plane import planes_of
from flatout.types import Limits


def group(name: str, **tags: Any) -> Dataset:
    """A functional group: one item, in a sequence of this name."""
    inner, outer = Dataset(), Dataset()
    for tag, value in tags.items():
        setattr(inner, tag, value)
    setattr(outer, name, Sequence([inner]))
    return outer


def make_header(**tags: Any) -> Dataset:
    dataset = Dataset()
    dataset.SeriesInstanceUID = "1.2.3"
    dataset.PhotometricInterpretation = "MONOCHROME2"
    dataset.Rows, dataset.Columns, dataset.BitsAllocated = 4, 5, 16
    for name, value in tags.items():
        setattr(dataset, name, value)
    return dataset


PLACE = {
    "ImagePositionPatient": [1, 2, 3],
    "ImageOrientationPatient": [1, 0, 0, 0, 1, 0],
    "PixelSpacing": [0.5, 0.25],
}


def test_a_plain_file_is_one_plane() -> None:
    (plane,) = planes_of(make_header(**PLACE, RescaleSlope="2", RescaleIntercept="-5"), Limits(), "a.dcm")
    assert (plane.name, plane.frame, plane.series) == ("a.dcm", 0, "1.2.3")
    assert plane.shape == (4, 5, 1)
    assert plane.num_bytes == 40
    assert plane.position == (1, 2, 3)
    assert plane.spacing == (0.5, 0.25)
    assert (plane.slope, plane.intercept) == (2, -5)
    assert plane.is_placed


@pytest.mark.parametrize("missing", list(PLACE))
def test_a_plane_is_placed_only_by_all_three_tags(missing: str) -> None:
    tags = {name: value for name, value in PLACE.items() if name != missing}
    assert not planes_of(make_header(**tags), Limits(), "a")[0].is_placed


def test_the_frame_wins_over_all_frames_and_these_over_the_file() -> None:
    dataset = make_header(
        **{**PLACE, "ImagePositionPatient": [9, 9, 9], "PixelSpacing": [9, 9]},
        NumberOfFrames=2,
        SharedFunctionalGroupsSequence=Sequence([group("PixelMeasuresSequence", PixelSpacing=[2, 3])]),
        PerFrameFunctionalGroupsSequence=Sequence(
            [
                group("PlanePositionSequence", ImagePositionPatient=[0, 0, 1]),
                group("PixelMeasuresSequence", PixelSpacing=[4, 5]),
            ]
        ),
    )
    first, second = planes_of(dataset, Limits(), "a")
    assert (first.position, first.spacing) == ((0, 0, 1), (2, 3))
    assert (second.position, second.spacing) == ((9, 9, 9), (4, 5))
    assert [first.frame, second.frame] == [0, 1]


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        ({}, 1.0),
        ({"SliceThickness": "3"}, 3.0),
        ({"SliceThickness": "3", "SpacingBetweenSlices": "-2.5"}, 2.5),
        ({"SliceThickness": "0"}, 1.0),
    ],
)
def test_a_lone_slice_has_a_depth(tags: dict[str, str], wanted: float) -> None:
    assert planes_of(make_header(**tags), Limits(), "a")[0].thickness == wanted


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ({"ImageOrientationPatient": [1, 0, 0, 1, 0, 0]}, "wanted two unit vectors"),
        ({"ImageOrientationPatient": [0, 0, 0, 0, 0, 0]}, "wanted two unit vectors"),
        ({"ImageOrientationPatient": [2, 0, 0, 0, 1, 0]}, "wanted two unit vectors"),
        ({"PixelSpacing": [0.5, 0]}, "PixelSpacing is"),
        ({"PixelSpacing": [0.5, -1]}, "PixelSpacing is"),
        ({"NumberOfFrames": 3}, "3 frames and positions of 0"),
        ({"ImagePositionPatient": [1, 2]}, "wanted 3 finite numbers"),
    ],
)
def test_impossible_places_are_refused(tags: dict[str, Any], reason: str) -> None:
    with pytest.raises(SampleError, match=reason):
        planes_of(make_header(**tags), Limits(), "a")
