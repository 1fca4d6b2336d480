"""Distance maps against the definition, point by point."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flatout.source.distance import distance_map
from flatout.types import Array

masks = arrays(np.uint8, st.tuples(*[st.integers(2, 6)] * 3), elements=st.integers(0, 2))


def by_definition(mask: Array, spacing: Array) -> Array:
    """For every point the distance to the nearest point on the other side."""
    points = np.argwhere(np.ones(mask.shape, dtype=bool)) * spacing
    is_inside = (mask != 0).ravel()
    apart = np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=2))
    apart[is_inside[:, None] == is_inside[None]] = np.inf
    found: Array = apart.min(axis=1).reshape(mask.shape)
    return found


@settings(max_examples=60, deadline=None)
@given(mask=masks, spacing=st.tuples(*[st.floats(0.5, 3)] * 3))
def test_every_point_has_its_distance_to_the_other_side(mask: Array, spacing: tuple[float, ...]) -> None:
    if mask.all() or not mask.any():
        return
    wanted = by_definition(mask, np.array(spacing))
    found = distance_map(mask, spacing)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    signed = distance_map(mask, spacing, signed=True)
    np.testing.assert_array_equal(signed, np.where(mask, -found, found))


def test_without_spacing_distances_are_in_pixels() -> None:
    assert distance_map(np.array([[0, 0, 0, 1, 1]])).tolist() == [[3, 2, 1, 1, 2]]


def test_clip_bounds_both_signs() -> None:
    found = distance_map(np.array([0, 0, 0, 1, 1, 1]), signed=True, clip=2)
    assert found.tolist() == [2, 2, 1, -1, -2, -2]


@pytest.mark.parametrize(("value", "sign"), [(0, 1), (1, -1)])
def test_without_a_boundary_all_is_as_far_as_the_diagonal(value: int, sign: int) -> None:
    mask = np.full((3, 4), value)
    assert (distance_map(mask) == 5).all()
    assert (distance_map(mask, signed=True) == 5 * sign).all()
    assert (distance_map(mask, (2, 2), signed=True, clip=7.0) == 7 * sign).all()
