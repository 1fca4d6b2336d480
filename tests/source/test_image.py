"""The image kind: settings in, (C, H, W) out, in the stated order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from flatout.config.fields import ImageField
from flatout.errors import ConfigError, SampleError
from flatout.source.files import SourceFile
from flatout.source.image import channels_first, convert_mode, make_steps, resize_picture
from flatout.source.picture import decode
from flatout.types import Array, Context, Decoded, Limits, Row

RGB = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
GREY = RGB[..., 0]


def run(array: Array, **field: Any) -> Array:
    context = Context(row=Row("key", {}))
    found = make_steps("photo", ImageField(**field), {})(Decoded(array), context)["photo"]
    assert isinstance(found, np.ndarray)
    assert found.flags.c_contiguous
    assert context.geometry["photo"].shape == channels_first(array).shape[1:]
    return found


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((6, 8), (1, 6, 8)),
        ((6, 8, 1), (1, 6, 8)),
        ((6, 8, 3), (3, 6, 8)),
        ((6, 8, 4), (3, 6, 8)),
        ((3, 6, 8), (3, 6, 8)),
        ((1, 6, 8), (1, 6, 8)),
    ],
)
def test_channels_are_found_and_put_first(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    assert run(np.zeros(shape, np.uint8)).shape == wanted


@pytest.mark.parametrize(
    "array", [np.zeros(4), np.zeros((2, 6, 8)), np.zeros((0, 3)), np.zeros((2, 2), complex)]
)
def test_what_is_no_picture_is_refused(array: Array) -> None:
    with pytest.raises(SampleError):
        run(array)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_pixels_are_stored_as_they_are(dtype: str) -> None:
    array = RGB.astype(dtype)
    found = run(array)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.moveaxis(array, 2, 0))


@pytest.mark.parametrize("dtype", ["int16", "int32", "float32", "float64", "bool"])
def test_other_numbers_become_float32(dtype: str) -> None:
    found = run(GREY.astype(dtype))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[0], GREY.astype(dtype))


def test_grey_is_pillows_grey() -> None:
    found = run(RGB, mode="L")
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found[0], np.asarray(Image.fromarray(RGB).convert("L")))


@given(array=arrays(np.uint16, (4, 5)))
def test_equal_channels_keep_their_value_as_grey(array: Array) -> None:
    for dtype in (np.uint8, np.uint16, np.int32, np.float32):
        same = np.stack([array.astype(dtype)] * 3)
        np.testing.assert_allclose(convert_mode(same, "L")[0], same[0], rtol=1e-6)
        np.testing.assert_array_equal(convert_mode(same[:1], "RGB"), same)


def test_resize_is_pillows_bilinear() -> None:
    wanted = np.asarray(Image.fromarray(RGB).resize((3, 4), Image.Resampling.BILINEAR))
    found = run(RGB, size=(4, 3))
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, np.moveaxis(wanted, 2, 0))


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(["uint8", "uint16", "float32", "int16"]),
    size=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    value=st.integers(0, 255),
)
def test_a_constant_picture_stays_constant(dtype: str, size: tuple[int, int], value: int) -> None:
    found = resize_picture(np.full((3, 7, 9), value, dtype), size, Limits())
    assert found.shape == (3, *size)
    np.testing.assert_allclose(found, value, rtol=1e-6)


def test_shrinking_averages_all_pixels() -> None:
    board = (np.indices((64, 64)).sum(axis=0) % 2 * 200).astype(np.uint16)
    assert abs(run(board, size=(4, 4)).astype(int) - 100).max() <= 5


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        ({"normalise": "unit"}, GREY / 255),
        ({"window": (50, 150)}, np.clip(GREY, 50, 150)),
        ({"window": (50, 150), "normalise": "unit"}, (np.clip(GREY, 50.0, 150.0) - 50) / 100),
        ({"normalise": "fixed", "mean": 10.0, "std": 4.0}, (GREY - 10.0) / 4),
        ({"normalise": "sample"}, (GREY - GREY.mean()) / GREY.std()),
    ],
)
def test_window_and_normalise_give_float32(field: dict[str, Any], wanted: Array) -> None:
    found = run(GREY, **field)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-5)


def test_one_number_a_channel() -> None:
    found = run(RGB, normalise="fixed", mean=[1.0, 2.0, 3.0], std=[1.0, 2.0, 4.0])
    np.testing.assert_allclose(found[2], (RGB[..., 2] - 3.0) / 4)
    with pytest.raises(SampleError, match="mean has 3 numbers, the sample 1 channels"):
        run(GREY, normalise="fixed", mean=[1.0, 2.0, 3.0])


def test_padding_comes_last() -> None:
    found = run(GREY, normalise="sample", size=(8, 8), fit="crop_pad", pad_value=-9.0)
    assert (found[0, 0] == -9).all()
    np.testing.assert_allclose(found[0, 1:7].mean(), 0, atol=1e-5)
    lowest = run(GREY, size=(8, 8), fit="crop_pad", pad_value=None)
    assert (lowest[0, 0] == GREY.min()).all()


@pytest.mark.parametrize("value", [-1.0, 256.0, 0.5])
def test_a_pad_value_that_pixels_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(SampleError, match="does not fit uint8"):
        run(GREY, size=(9, 9), fit="crop_pad", pad_value=value)


def test_dtype_overrides() -> None:
    assert run(GREY, dtype="float16", normalise="unit").dtype == np.float16
    assert run(GREY.astype(np.int32), dtype="int32").dtype == np.int32
    with pytest.raises(ConfigError, match="gives fractions"):
        make_steps("photo", ImageField(dtype="uint8", normalise="unit"), {})
    with pytest.raises(SampleError, match="do not fit uint8"):
        run(GREY.astype(np.uint16) + 200, dtype="uint8")


def test_the_decoded_array_is_never_changed() -> None:
    array = RGB.astype(np.float32)
    before = array.copy()
    array.flags.writeable = False
    found = run(array, window=(3, 9), normalise="sample")
    np.testing.assert_array_equal(array, before)
    assert not np.shares_memory(found, array)
    assert abs(float(found.mean())) < 1e-5


def test_real_slices_become_grey(data_dir: Path) -> None:
    paths = sorted((data_dir / "cmr_seg_sunnybrook" / "images").glob("*/*.png"))[:10]
    for path in paths:
        decoded = decode(SourceFile.whole(path), Limits())
        found = run(decoded.array, mode="L", size=(128, 128))
        assert found.shape == (1, 128, 128)
        assert found.dtype == np.uint8
