"""One DICOM file: numbers of the header, the claimed size, and errors that stay sample errors."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset

from flatout.errors import SampleError
from flatout.source.dicom_file import (
    as_sample_error,
    is_dicom,
    pixel_shape,
    read_dataset,
    read_number,
    read_numbers,
    read_pixels,
    rescale,
)
from flatout.types import Limits

PACKAGED = Path(pydicom.__file__).parent / "data" / "test_files"


def make_header(**tags: Any) -> Dataset:
    dataset = Dataset()
    dataset.Rows, dataset.Columns, dataset.BitsAllocated = 4, 5, 16
    for name, value in tags.items():
        setattr(dataset, name, value)
    return dataset


def test_only_the_prefix_makes_a_dicom_file() -> None:
    assert is_dicom(bytes(128) + b"DICM")
    assert not is_dicom(b"DICM")
    assert not is_dicom(bytes(200))


def test_chosen_tags_come_without_pixels() -> None:
    data = (PACKAGED / "CT_small.dcm").read_bytes()
    dataset = read_dataset(data, "ct", ["Rows", "PixelSpacing"])
    assert dataset.Rows == 128
    assert "PixelData" not in dataset
    assert "PatientName" not in dataset
    assert "PixelData" in read_dataset(data, "ct")


def test_numbers_are_read_or_refused() -> None:
    dataset = make_header(PixelSpacing=[0.5, 0.25], SliceThickness="", RescaleSlope="3")
    assert read_numbers(dataset, "PixelSpacing", 2, "a") == (0.5, 0.25)
    assert read_number(dataset, "RescaleSlope", "a") == 3.0
    assert read_numbers(dataset, "SliceThickness", 1, "a") is None
    assert read_number(dataset, "RescaleIntercept", "a", 7.0) == 7.0
    with pytest.raises(SampleError, match="a has no RescaleIntercept"):
        read_number(dataset, "RescaleIntercept", "a")
    with pytest.raises(SampleError, match="wanted 3 finite numbers"):
        read_numbers(dataset, "PixelSpacing", 3, "a")
    for value in (float("inf"), float("nan")):
        dataset.RescaleSlope = value
        with pytest.raises(SampleError, match="wanted 1 finite numbers"):
            read_number(dataset, "RescaleSlope", "a")


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ({"Rows": 0}, "claims 1 frames of 0 x 5"),
        ({"BitsAllocated": 12}, "samples of 12 bits"),
        ({"SamplesPerPixel": 2}, "2 samples"),
        ({"NumberOfFrames": -4}, "claims -4 frames"),
        ({"Rows": 60000, "Columns": 60000}, "claims 7,200,000,000 bytes"),
        ({"NumberOfFrames": 2**31 - 1}, "max_sample_bytes is 2,147,483,648"),
    ],
)
def test_an_impossible_claim_is_refused(tags: dict[str, Any], reason: str) -> None:
    with pytest.raises(SampleError, match=reason):
        pixel_shape(make_header(**tags), Limits(), "a")


def test_a_possible_claim_is_its_shape() -> None:
    assert pixel_shape(make_header(), Limits(), "a") == (1, 4, 5, 1)
    assert pixel_shape(make_header(NumberOfFrames=3, SamplesPerPixel=3), Limits(), "a") == (3, 4, 5, 3)
    assert pixel_shape(make_header(NumberOfFrames=0), Limits(), "a") == (1, 4, 5, 1)


def test_pixels_have_a_frame_axis_and_native_numbers() -> None:
    for name, shape in (("MR_small_bigendian", (1, 64, 64)), ("rtdose_expb", (15, 10, 10))):
        dataset = read_dataset((PACKAGED / f"{name}.dcm").read_bytes(), name)
        pixels = read_pixels(dataset, Limits(), name)
        assert pixels.shape == shape
        assert pixels.dtype.isnative


def test_ybr_becomes_rgb() -> None:
    wanted = read_dataset((PACKAGED / "SC_rgb_rle.dcm").read_bytes(), "rgb")
    stored = read_dataset((PACKAGED / "SC_ybr_full_422_uncompressed.dcm").read_bytes(), "ybr")
    difference = read_pixels(stored, Limits(), "ybr").astype(int) - read_pixels(wanted, Limits(), "rgb")
    assert np.abs(difference).mean() < 3


def test_rescale_leaves_alone_what_it_need_not_change() -> None:
    pixels = np.array([1, 2], np.int16)
    assert rescale(pixels, 1.0, 0.0) is pixels
    found = rescale(pixels, 0.5, -1024.0)
    assert found.dtype == np.float32
    assert found.tolist() == [-1023.5, -1023.0]
    assert not np.isfinite(rescale(pixels, 1e300, 0.0)).any()


def test_errors_become_sample_errors_and_noise_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    with as_sample_error("it"):
        warnings.warn("harmless", stacklevel=1)
        logging.getLogger("pydicom").warning("harmless")
    assert not caplog.records
    assert logging.getLogger("pydicom").propagate
    with pytest.raises(SampleError, match="decode: it: two words") as caught, as_sample_error("it"):
        raise RuntimeError("two\n  words")
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(SampleError, match="decode: mine"), as_sample_error("it"):
        raise SampleError("decode", "mine")
    with pytest.raises(SampleError, match="KeyError"), as_sample_error("it"):
        raise KeyError


def test_a_panic_is_caught_and_an_interrupt_is_not() -> None:
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(SampleError, match="index out of bounds"), as_sample_error("it"):
        raise panic("index out of bounds")
    with pytest.raises(KeyboardInterrupt), as_sample_error("it"):
        raise KeyboardInterrupt
