"""The volume kind: settings in, (C, X, Y, Z) out, in the stated order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config.fields import VolumeField
from flatout.errors import ConfigError, SampleError
from flatout.source.files import SourceFile
from flatout.source.nifti import decode
from flatout.source.volume import make_steps
from flatout.types import Array, Context, Decoded, Limits, Row

AFFINE = np.diag([1.0, 1.0, 2.0, 1.0])


def run(array: Array, affine: Array | None = AFFINE, **field: Any) -> Array:
    context = Context(row=Row("key", {}))
    outputs = make_steps("scan", VolumeField(**field), {})(Decoded(array, affine=affine), context)
    found = outputs["scan"]
    assert list(outputs) == ["scan"]
    assert isinstance(found, np.ndarray)
    assert found.flags.c_contiguous
    assert context.geometry["scan"].affine is affine
    return found


def ramp(*shape: int, dtype: str = "i2") -> Array:
    return np.asfortranarray(np.arange(np.prod(shape)).reshape(shape).astype(dtype))


def test_plain_settings_give_float32_with_one_channel() -> None:
    found = run(ramp(3, 4, 5))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, ramp(3, 4, 5)[None])


def test_the_geometry_of_the_raw_volume_is_recorded() -> None:
    context = Context(row=Row("key", {}))
    steps = make_steps("scan", VolumeField(size=(2, 2, 2), channels="keep"), {})
    steps(Decoded(ramp(3, 4, 5, 2), affine=AFFINE), context)
    assert context.geometry["scan"].shape == (3, 4, 5)
    np.testing.assert_array_equal(context.geometry["scan"].affine, AFFINE)  # type: ignore[arg-type]


def test_axes_point_where_the_orientation_says() -> None:
    array = ramp(2, 3, 4)
    affine = np.array([[0, 0, -1.0, 0], [1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1]])
    wanted = nibabel.as_closest_canonical(nibabel.Nifti1Image(array, affine)).get_fdata()
    np.testing.assert_array_equal(run(array, affine)[0], wanted)
    np.testing.assert_array_equal(run(array, affine, orientation=None)[0], array)
    np.testing.assert_array_equal(run(array, affine, orientation="LPI")[0], wanted[::-1, ::-1, ::-1])


def test_an_array_without_affine_stays_as_it_is() -> None:
    np.testing.assert_array_equal(run(ramp(2, 3, 4), None)[0], ramp(2, 3, 4))
    with pytest.raises(SampleError, match="says nothing of its voxels' size"):
        run(ramp(2, 3, 4), None, spacing=(1, 1, 1))


def test_spacing_resamples_along_the_axes() -> None:
    found = run(ramp(2, 2, 4), spacing=(1, 1, 1))
    assert found.shape == (1, 2, 2, 8)
    np.testing.assert_allclose(found[0, 0, 0], [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3])


@pytest.mark.parametrize("shape", [(4, 5, 6, 1), (4, 5, 6, 1, 1), (4, 5, 6, 1, 1, 1, 1)])
def test_trailing_axes_of_length_1_mean_nothing(shape: tuple[int, ...]) -> None:
    assert run(ramp(*shape)).shape == (1, 4, 5, 6)


def test_a_single_slice_is_a_flat_volume() -> None:
    assert run(ramp(4, 5)).shape == (1, 4, 5, 1)


@pytest.mark.parametrize("shape", [(4, 5, 6, 3), (4, 5, 6, 1, 3), (4, 5, 6, 2, 3)])
def test_several_channels_follow_the_rule(shape: tuple[int, ...]) -> None:
    array = ramp(*shape)
    folded = array.reshape((4, 5, 6, -1), order="F")
    with pytest.raises(SampleError, match=r"\(4, 5, 6\), and channels is 'refuse'; set channels: first"):
        run(array)
    np.testing.assert_array_equal(run(array, channels="first")[0], folded[..., 0])
    np.testing.assert_allclose(run(array, channels="mean")[0], folded.mean(axis=3), rtol=1e-6)
    np.testing.assert_array_equal(run(array, channels="keep"), np.moveaxis(folded, 3, 0))


def test_rgb_voxels_are_channels() -> None:
    dtype = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
    array = np.frombuffer(bytes(range(72)), dtype=dtype).reshape((2, 3, 4), order="F")
    with pytest.raises(SampleError, match="3 channels"):
        run(array)
    found = run(array, channels="keep")
    assert found.shape == (3, 2, 3, 4)
    np.testing.assert_array_equal(found[1], array["G"])


@settings(max_examples=40, deadline=None)
@given(channels=st.sampled_from(["keep", "first", "mean"]), is_c_order=st.booleans())
def test_channels_are_resampled_one_by_one(channels: Any, is_c_order: bool) -> None:
    array = np.random.default_rng(0).normal(size=(5, 6, 7, 3))
    array = np.ascontiguousarray(array) if is_c_order else np.asfortranarray(array)
    field = {"spacing": (0.7, 1.4, 1.1), "size": (6, 6, 6), "pad_value": -5.0}
    found = run(array, channels=channels, **field)
    planes = {
        "keep": [array[..., at] for at in range(3)],
        "first": [array[..., 0]],
        "mean": [array.mean(axis=3)],
    }
    wanted = np.concatenate([run(plane, **field) for plane in planes[channels]])
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_window_then_normalise_then_size() -> None:
    array = ramp(4, 1, 1) * 10  # 0 10 20 30
    found = run(array, window=(5, 25), normalise="unit", size=(6, 1, 1), pad_value=-1)
    np.testing.assert_allclose(found.ravel(), [-1, 0, 0.25, 0.75, 1, -1])


def test_padding_is_the_minimum_unless_it_is_set() -> None:
    found = run(ramp(2, 2, 2) + 7, size=(4, 4, 4))
    assert found[0, 0, 0, 0] == 7.0
    assert run(ramp(2, 2, 2) + 7, size=(4, 4, 4), pad_value=0)[0, 0, 0, 0] == 0.0


@pytest.mark.parametrize("normalise", ["none", "fixed", "unit", "sample", "percentile"])
def test_statistics_see_neither_padding_nor_crop(normalise: Any) -> None:
    array = np.random.default_rng(0).integers(0, 200, (8, 6, 4)).astype(np.uint8)
    field = {"normalise": normalise, "mean": 3.0, "std": 7.0}
    whole = run(array, **field)
    found = run(array, size=(4, 6, 8), pad_value=9.0, **field)
    np.testing.assert_array_equal(found[:, :, :, 2:6], whole[:, 2:6])
    assert (found[:, :, :, :2] == 9).all()


def test_resize_stretches_the_whole_field_of_view() -> None:
    found = run(ramp(4, 4, 4), size=(8, 2, 4), fit="resize")
    assert found.shape == (1, 8, 2, 4)
    np.testing.assert_allclose(found.mean(), ramp(4, 4, 4).mean(), rtol=1e-6)


def test_the_decoded_array_is_never_changed() -> None:
    for array in (ramp(4, 4, 4, dtype="f4"), np.ascontiguousarray(ramp(4, 4, 4, dtype="f4"))):
        before = array.copy()
        array.flags.writeable = False
        run(array, window=(3, 9), normalise="sample")
        np.testing.assert_array_equal(array, before)


def test_whole_numbers_stay_exact_and_interpolated_ones_are_rounded() -> None:
    array = ramp(2, 2, 2, dtype="i4") + 2**30 + 1
    found = run(array, dtype="int32")
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found[0], array)
    small = run(ramp(2, 2, 4), dtype="int16", spacing=(1, 1, 1))
    assert small.dtype == np.int16
    np.testing.assert_array_equal(small[0, 0, 0], [0, 0, 1, 1, 2, 2, 3, 3])


def test_whole_numbers_are_refused_where_they_would_lie() -> None:
    with pytest.raises(ConfigError, match="gives fractions"):
        make_steps("scan", VolumeField(dtype="int16", normalise="sample"), {})
    with pytest.raises(SampleError, match="have fractions"):
        run(ramp(2, 2, 2, dtype="f4") / 3, dtype="int16")
    with pytest.raises(SampleError, match="do not fit uint8"):
        run(ramp(8, 8, 8), dtype="uint8")


@pytest.mark.parametrize(
    "field",
    [{"orientation": "XYZ"}, {"window": (3, 3)}, {"dtype": "complex64"}, {"dtype": "bool"}, {"dtype": "x"}],
)
def test_impossible_settings_are_found_before_any_file(field: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_steps("scan", VolumeField(**field), {})


@pytest.mark.parametrize("array", [np.zeros(5), np.zeros((0, 3, 3)), np.zeros((3, 3, 3), complex)])
def test_what_is_no_volume_is_refused(array: Array) -> None:
    with pytest.raises(SampleError):
        run(array)


def test_values_that_are_not_finite_pass_to_the_check_that_follows() -> None:
    array = ramp(4, 4, 4, dtype="f8").copy()
    array[0, 0, 0], array[3, 3, 3] = np.nan, 1e300
    for field in ({}, {"normalise": "sample"}, {"spacing": (0.5, 0.5, 0.5)}, {"size": (6, 6, 6)}):
        assert not np.isfinite(run(array, **field)).all()


def test_real_scans_become_one_shape(data_dir: Path) -> None:
    paths = sorted((data_dir / "mr_hippocampus" / "images").glob("*.nii.gz"))[:20]
    field = {"spacing": (1.2, 1.2, 1.2), "normalise": "sample", "size": (32, 40, 32)}
    for path in paths:
        decoded = decode(SourceFile.whole(path), Limits())
        found = run(decoded.array, decoded.affine, **field)
        assert found.shape == (1, 32, 40, 32)
        assert np.isfinite(found).all()
