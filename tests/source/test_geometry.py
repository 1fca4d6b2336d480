"""Geometry: an array and its affine stay true to each other through every step."""

from __future__ import annotations

from typing import Any

import nibabel
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flatout.errors import ConfigError, SampleError
from flatout.source.geometry import (
    check_orientation,
    crop,
    is_same_place,
    pad,
    reorient,
    resize,
    respace,
    spacing_of,
)
from flatout.types import Array, Limits

FLOAT64 = np.dtype(np.float64)
LIMITS = Limits()
CODES = ["RAS", "LPS", "LPI", "SAR", "AIL", "PSR"]
SLOPES = np.array([0.7, -1.3, 2.1])

angles = st.floats(-np.pi, np.pi)
sizes = st.tuples(*[st.integers(2, 9)] * 3)
spacings = st.tuples(*[st.floats(0.4, 3.0)] * 3)


@st.composite
def affines(draw: Any) -> Array:
    affine = np.eye(4)
    rotation = nibabel.eulerangles.euler2mat(draw(angles), draw(angles), draw(angles))
    flips = np.array(draw(st.tuples(*[st.sampled_from([-1.0, 1.0])] * 3)))
    affine[:3, :3] = rotation[:, draw(st.permutations(range(3)))] * flips * draw(spacings)
    affine[:3, 3] = draw(st.tuples(*[st.floats(-50, 50)] * 3))
    return affine


def world_points(shape: tuple[int, ...], affine: Array) -> Array:
    grid = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    return grid @ affine[:3, :3].T + affine[:3, 3]


def linear_volume(shape: tuple[int, ...], affine: Array) -> Array:
    """Values that are a linear function of the place in the world."""
    values: Array = world_points(shape, affine) @ SLOPES
    return np.asfortranarray(values)[None]


def is_within(shape: tuple[int, ...], affine: Array, points: Array) -> Array:
    """Which points lie between the outermost voxel centres of a grid."""
    inverse = np.linalg.inv(affine)
    voxels = points @ inverse[:3, :3].T + inverse[:3, 3]
    within: Array = ((voxels >= -1e-9) & (voxels <= np.array(shape) - 1 + 1e-9)).all(axis=-1)
    return within


@settings(max_examples=150, deadline=None)
@given(affine=affines(), shape=sizes, code=st.sampled_from(CODES), spacing=spacings, size=sizes)
def test_a_linear_function_of_the_world_stays_that_function(
    affine: Array, shape: tuple[int, int, int], code: str, spacing: tuple[float, ...], size: tuple[int, ...]
) -> None:
    volume, turned = reorient(linear_volume(shape, affine), affine, code)
    assert turned is not None
    respaced = respace(volume, turned, spacing, LIMITS, FLOAT64)
    for array, placed in (
        respaced,
        pad(*crop(*respaced, size), size, np.nan, LIMITS),
        resize(volume, turned, size, LIMITS, FLOAT64),
        pad(*crop(volume, turned, size), size, np.nan, LIMITS),
    ):
        assert placed is not None
        points = world_points(array.shape[1:], placed)
        inside = is_within(shape, affine, points) & ~np.isnan(array[0])
        np.testing.assert_allclose(array[0][inside], (points @ SLOPES)[inside], atol=1e-6)


@settings(max_examples=100, deadline=None)
@given(affine=affines(), shape=sizes, spacing=spacings)
def test_the_centre_of_the_field_of_view_stays(
    affine: Array, shape: tuple[int, int, int], spacing: tuple[float, ...]
) -> None:
    def centre(array: Array, affine: Array) -> Array:
        found: Array = affine[:3, :3] @ ((np.array(array.shape[1:]) - 1) / 2) + affine[:3, 3]
        return found

    volume = linear_volume(shape, affine)
    for array, placed in (
        respace(volume, affine, spacing, LIMITS, FLOAT64),
        resize(volume, affine, (5, 4, 3), LIMITS, FLOAT64),
        reorient(volume, affine, "LPI"),
    ):
        assert placed is not None
        np.testing.assert_allclose(centre(array, placed), centre(volume, affine), atol=1e-9)


@settings(max_examples=100, deadline=None)
@given(affine=affines(), shape=sizes, spacing=spacings)
def test_the_spacing_is_the_one_asked_for(
    affine: Array, shape: tuple[int, int, int], spacing: tuple[float, ...]
) -> None:
    old = spacing_of(affine)
    array, placed = respace(np.zeros((1, *shape)), affine, spacing, LIMITS, FLOAT64)
    assert placed is not None
    np.testing.assert_allclose(spacing_of(placed), spacing, rtol=2e-4)
    for got, num, before, after in zip(array.shape[1:], shape, old, spacing, strict=True):
        assert abs(got - max(1.0, num * before / after)) <= 0.5 + 1e-3 * got


@settings(max_examples=100, deadline=None)
@given(affine=affines(), shape=sizes)
def test_canonical_orientation_is_nibabels(affine: Array, shape: tuple[int, int, int]) -> None:
    """Where each axis has a nearest direction of its own. Otherwise nibabel gives the axes theirs one after the
    other, and here all get what fits best together."""
    directions = np.abs(affine[:3, :3] / spacing_of(affine))
    assume(len(set(directions.argmax(axis=0))) == 3)
    ordered = np.sort(directions, axis=0)
    assume((ordered[2] - ordered[1] > 0.1).all())  # else two answers are as good
    volume = linear_volume(shape, affine)
    array, placed = reorient(volume, affine, "RAS")
    wanted = nibabel.as_closest_canonical(nibabel.Nifti1Image(volume[0], affine))
    np.testing.assert_array_equal(array[0], wanted.dataobj)
    np.testing.assert_allclose(placed, wanted.affine, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(affine=affines(), first=st.sampled_from(CODES), second=st.sampled_from(CODES))
def test_reorienting_is_only_a_matter_of_the_last_code(affine: Array, first: str, second: str) -> None:
    volume = linear_volume((3, 4, 5), affine)
    once, placed_once = reorient(volume, affine, second)
    twice, placed_twice = reorient(*reorient(volume, affine, first), second)
    np.testing.assert_array_equal(twice, once)
    np.testing.assert_allclose(placed_twice, placed_once, atol=1e-9)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(affine=affines(), shape=sizes, spacing=spacings, size=sizes)
def test_nearest_neighbour_invents_no_value(
    affine: Array, shape: tuple[int, int, int], spacing: tuple[float, ...], size: tuple[int, ...]
) -> None:
    labels = np.random.default_rng(0).integers(3, 9, (1, *shape)).astype(np.uint8)
    array, placed = respace(*reorient(labels, affine, "RAS"), spacing, LIMITS)  # type: ignore[arg-type]
    for found, _ in (resize(array, placed, size, LIMITS), crop(array, placed, size), (array, placed)):
        assert found.dtype == np.uint8
        assert set(np.unique(found)) <= set(np.unique(labels))


def test_volume_and_mask_land_on_the_same_grid() -> None:
    affine = np.diag([0.71, 0.83, 2.9, 1.0])
    array, first = respace(np.zeros((1, 31, 29, 11)), affine, (1.1, 0.9, 1.3), LIMITS, FLOAT64)
    mask, second = respace(np.zeros((1, 31, 29, 11), np.uint8), affine, (1.1, 0.9, 1.3), LIMITS)
    assert array.shape == mask.shape
    np.testing.assert_array_equal(first, second)  # type: ignore[arg-type]


def test_nearly_the_same_spacing_changes_nothing() -> None:
    array = np.zeros((1, 20, 20, 20), np.float32)
    nearly = np.diag([1.00001, 1.0, 0.99999, 1.0])
    found, affine = respace(array, nearly, (1, 1, 1), LIMITS, np.dtype(np.float32))
    assert found is array
    assert affine is not None
    assert affine[0, 0] == 1.00001


@pytest.mark.parametrize(("size", "kept"), [(3, [1, 2, 3]), (2, [1, 2]), (5, [0, 1, 2, 3, 4]), (1, [2])])
def test_crop_keeps_the_middle(size: int, kept: list[int]) -> None:
    array, _ = crop(np.arange(5.0).reshape(1, 5, 1, 1), None, (size, 1, 1))
    assert array.ravel().tolist() == kept


@pytest.mark.parametrize(
    ("size", "wanted"), [(4, [9, 1, 2, 9]), (5, [9, 1, 2, 9, 9]), (2, [1, 2]), (1, [1, 2])]
)
def test_pad_fills_around_the_middle(size: int, wanted: list[int]) -> None:
    array, _ = pad(np.array([1.0, 2.0]).reshape(1, 2, 1), None, (size, 1), 9, LIMITS)
    assert array.ravel().tolist() == wanted


def test_without_an_affine_nothing_is_turned() -> None:
    array = np.zeros((1, 2, 3, 4))
    assert reorient(array, None, "RAS") == (array, None)
    assert resize(array, None, (2, 2, 2), LIMITS, FLOAT64)[1] is None


@pytest.mark.parametrize("code", ["RAX", "RRS", "RA", "RASL", ""])
def test_a_wrong_orientation_is_a_config_error(code: str) -> None:
    with pytest.raises(ConfigError, match="as RAS"):
        check_orientation(code)


def test_orientation_may_be_written_small() -> None:
    assert check_orientation("lps") == "LPS"


@pytest.mark.parametrize("affine", [np.zeros((4, 4)), np.diag([1.0, 1.0, 0.0, 1.0]), np.ones((4, 4))])
def test_a_flat_affine_is_refused(affine: Array) -> None:
    for step in (
        lambda: reorient(np.zeros((1, 2, 2, 2)), affine, "RAS"),
        lambda: respace(np.zeros((1, 2, 2, 2)), affine, (1, 1, 1), LIMITS),
    ):
        with pytest.raises(SampleError, match="no volume"):
            step()


@pytest.mark.parametrize("spacing", [1e-5, 1e-30, 1e-300])
def test_a_grid_beyond_memory_is_refused(spacing: float) -> None:
    with pytest.raises(SampleError, match="bytes; max_sample_bytes is 2,147,483,648"):
        respace(np.zeros((1, 9, 9, 9)), np.eye(4), (spacing,) * 3, LIMITS, FLOAT64)
    with pytest.raises(SampleError, match="max_sample_bytes is"):
        pad(np.zeros((1, 9, 9, 9)), None, (10**5,) * 3, 0, LIMITS)


@pytest.mark.parametrize(("shift_mm", "wanted"), [(0.0, True), (0.05, True), (0.3, False)])
def test_the_same_place_leaves_room_for_rounding_only(shift_mm: float, wanted: bool) -> None:
    first = np.diag([1.0, 1.0, 2.0, 1.0])
    second = first.copy()
    second[0, 3] += shift_mm
    assert is_same_place(first, second, (9, 9, 9)) is wanted


def test_a_small_angle_matters_far_from_the_origin() -> None:
    first, second = np.eye(4), np.eye(4)
    second[0, 1] = 1e-3
    assert is_same_place(first, second, (10, 10, 10))
    assert not is_same_place(first, second, (10, 500, 10))


def test_the_configured_limit_holds() -> None:
    array, few = np.zeros((1, 4, 4, 4), np.float32), Limits(max_sample_bytes=1 << 10)
    told = r"8 x 8 x 8 points would take 2048 bytes; max_sample_bytes is 1,024"
    for step in (
        lambda: respace(array, np.eye(4), (0.5,) * 3, few, np.dtype(np.float32)),
        lambda: resize(array, None, (8, 8, 8), few, np.dtype(np.float32)),
        lambda: resize(array.astype(np.uint32), None, (8, 8, 8), few),
        lambda: pad(array, None, (8, 8, 8), 0, few),
    ):
        with pytest.raises(SampleError, match=told):
            step()
    for step in (
        lambda: respace(array, np.eye(4), (0.5, 1, 1), few, np.dtype(np.float32)),
        lambda: resize(array.astype(np.uint8), None, (8, 8, 8), few),
    ):
        assert step()[0].nbytes == 512


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), None])
def test_a_way_that_is_larger_than_its_ends_is_refused(dtype: Any) -> None:
    """Two axes grow before the third shrinks: 1 MB in, 1 MB out, 16 GB in between."""
    array = np.zeros((1, 2, 2, 65536), np.float32)
    if dtype is None:
        array = array.astype(np.uint32)
    with pytest.raises(SampleError, match=r"would take 1\.718e\+10 bytes on the way; max_sample_bytes is 2,14"):
        resize(array, None, (256, 256, 4), LIMITS, dtype)
    shrunk, _ = resize(array, None, (2, 2, 64), Limits(max_sample_bytes=2048), dtype)
    assert shrunk.shape == (1, 2, 2, 64)  # what is there already counts as allowed
