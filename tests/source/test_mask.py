"""The mask kind: it follows its image or volume to the voxel, and never invents a label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config.fields import AnyField, ImageField, LabelField, MaskField, VolumeField
from flatout.errors import ConfigError, SampleError
from flatout.source import image, nifti, picture, volume
from flatout.source.files import SourceFile
from flatout.source.mask import decode_kind, make_steps
from flatout.types import Array, Context, Decoded, Geometry, Limits, Row

AFFINE = np.diag([1.0, 1.0, 2.0, 1.0])


def run(
    array: Array,
    owner: AnyField,
    affine: Array | None = None,
    geometry: Geometry | None = None,
    info: dict[str, Any] | None = None,
    **field: Any,
) -> dict[str, Array]:
    context = Context(row=Row("key", {}))
    num_axes = 3 if owner.kind == "volume" else 2
    context.geometry["scan"] = geometry or Geometry(array.shape[:num_axes], affine)
    steps = make_steps("mask", MaskField(**field), {"scan": owner})
    outputs = dict(steps(Decoded(array, affine=affine, info=info or {}), context))
    assert all(isinstance(found, np.ndarray) and found.flags.c_contiguous for found in outputs.values())
    return outputs  # type: ignore[return-value]


def labels(*shape: int, dtype: str = "u1") -> Array:
    return np.random.default_rng(0).integers(0, 4, shape).astype(dtype)


def test_a_mask_is_read_like_the_field_it_belongs_to() -> None:
    fields: dict[str, AnyField] = {"y": LabelField(), "scan": VolumeField(), "photo": ImageField()}
    assert decode_kind(MaskField(), fields) == "volume"
    assert decode_kind(MaskField(of="photo"), fields) == "image"
    for field in (MaskField(of="y"), MaskField(of="nothing")):
        with pytest.raises(ConfigError, match=r"found: scan, photo"):
            decode_kind(field, fields)
    with pytest.raises(ConfigError, match="there is none"):
        make_steps("mask", MaskField(), {"y": LabelField()})


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_geometry_invents_a_label(data: st.DataObject) -> None:
    array = labels(7, 8, 6, dtype=data.draw(st.sampled_from(["u1", "i2", "f4"])))
    array[array == 2] = 3
    owner = VolumeField(
        orientation=data.draw(st.sampled_from([None, "RAS", "LPI", "SAR"])),
        spacing=data.draw(st.none() | st.tuples(*[st.floats(0.5, 3)] * 3)),
        size=data.draw(st.none() | st.tuples(*[st.integers(1, 12)] * 3)),
        fit=data.draw(st.sampled_from(["crop_pad", "resize"])),
    )
    found = run(array, owner, AFFINE)["mask"]
    assert found.dtype == np.uint8
    assert set(np.unique(found)) <= {0, 1, 3}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_mask_and_volume_stay_together(data: st.DataObject) -> None:
    """A volume of two plateaus far apart: its mask must say where each voxel came from.

    Interpolated once: the nearest of the nearest may be a neighbour of the nearest.
    """
    mask = np.zeros((9, 8, 7), np.uint8)
    mask[3:6, 2:6, 2:5] = 1
    spacing = data.draw(st.none() | st.tuples(*[st.floats(0.5, 2)] * 3))
    owner = VolumeField(
        orientation=data.draw(st.sampled_from([None, "RAS", "LPI", "SAR"])),
        spacing=spacing,
        size=data.draw(st.none() | st.tuples(*[st.integers(4, 12)] * 3)),
        fit="crop_pad" if spacing else data.draw(st.sampled_from(["crop_pad", "resize"])),
    )
    affine = np.array([[0, 1.5, 0, 3], [-1, 0, 0, 4], [0, 0, 2.0, 5], [0, 0, 0, 1]])
    context = Context(row=Row("key", {}))
    scan = volume.make_steps("scan", owner, {})(Decoded(mask * np.int16(1000), affine=affine), context)["scan"]
    found = make_steps("mask", MaskField(), {"scan": owner})(Decoded(mask, affine=affine), context)["mask"]
    assert isinstance(scan, np.ndarray)
    assert isinstance(found, np.ndarray)
    assert scan.shape == found.shape
    assert (scan[found == 1] >= 124).all()  # an eighth: half way along each of three axes
    assert (scan[found == 0] <= 876).all()


@pytest.mark.parametrize("fit", ["resize", "crop_pad"])
@pytest.mark.parametrize("size", [(4, 4), (16, 12), (3, 20)])
def test_mask_and_picture_stay_together(fit: Any, size: tuple[int, int]) -> None:
    mask = np.zeros((8, 8), np.uint8)
    mask[2:6, 3:7] = 255
    owner = ImageField(size=size, fit=fit)
    context = Context(row=Row("key", {}))
    photo = image.make_steps("scan", owner, {})(Decoded(mask), context)["scan"]
    steps = make_steps("mask", MaskField(values={0: 0, 255: 1}), {"scan": owner})
    found = steps(Decoded(mask), context)["mask"]
    assert isinstance(photo, np.ndarray)
    assert isinstance(found, np.ndarray)
    assert photo.shape == found.shape == (1, *size)
    assert set(np.unique(found)) <= {0, 1}
    assert (photo[found == 1] > 30).all()
    assert (photo[found == 0] < 225).all()


def test_equal_channels_collapse_and_others_are_refused() -> None:
    plane = labels(5, 6)
    found = run(np.stack([plane] * 3, axis=-1), ImageField())["mask"]
    np.testing.assert_array_equal(found[0], plane)
    with pytest.raises(SampleError, match="3 channels differ"):
        run(labels(5, 6, 3), ImageField())
    with pytest.raises(SampleError, match="2 channels differ"):
        run(labels(5, 6, 4, 2), VolumeField())


def test_the_indices_of_a_palette_are_the_labels() -> None:
    found = run(labels(5, 6, 3), ImageField(), info={"indices": labels(5, 6)})["mask"]
    np.testing.assert_array_equal(found[0], labels(5, 6))


@pytest.mark.parametrize("dtype", ["u1", "i2", "i8", "f4", "f8", "?"])
def test_values_map_labels_to_classes(dtype: str) -> None:
    array = (labels(4, 5) > 1).astype(dtype)
    found = run(array, ImageField(), values={0: 7, 1: 2, 300: 5})["mask"]
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found[0], np.where(array, 2, 7))


@pytest.mark.parametrize("dtype", ["u1", "i4", "f4"])
def test_a_label_that_is_not_listed_is_named(dtype: str) -> None:
    array = np.zeros((4, 4), dtype)
    array[2, 2] = 9
    with pytest.raises(SampleError, match="the value 9, which values does not list"):
        run(array, ImageField(), values={0: 0, 1: 1})


def test_labels_that_do_not_fit_are_named() -> None:
    array = np.zeros((4, 4), np.int32)
    array[0, 0] = 300
    with pytest.raises(SampleError, match="the value 300, which uint8 does not hold"):
        run(array, ImageField())
    assert run(array, ImageField(), dtype="int16")["mask"].max() == 300
    array[0, 0] = -1
    with pytest.raises(SampleError, match="the value -1,"):
        run(array, ImageField())
    for value in (0.5, np.nan, np.inf):
        broken = np.full((4, 4), value, np.float32)
        with pytest.raises(SampleError, match="the mask has the value"):
            run(broken, ImageField())


@pytest.mark.parametrize(
    "field", [{"dtype": "float32"}, {"values": {0: 0, 1: 256}}, {"values": {}}, {"dtype": "complex64"}]
)
def test_impossible_settings_are_found_before_any_file(field: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="field 'mask'"):
        make_steps("mask", MaskField(**field), {"scan": ImageField()})


def test_another_shape_or_place_is_refused() -> None:
    with pytest.raises(SampleError, match=r"shape \(4, 5, 6\), its 'scan' has \(4, 5, 7\)"):
        run(labels(4, 5, 6), VolumeField(), AFFINE, Geometry((4, 5, 7), AFFINE))
    moved = AFFINE.copy()
    moved[1, 3] = 2.5
    with pytest.raises(SampleError, match=r"stands elsewhere.*2\.5.*'scan'"):
        run(labels(4, 5, 6), VolumeField(), moved, Geometry((4, 5, 6), AFFINE))
    moved[1, 3] = 1e-4
    run(labels(4, 5, 6), VolumeField(), moved, Geometry((4, 5, 6), AFFINE))
    run(labels(4, 5, 6), VolumeField(), None, Geometry((4, 5, 6), AFFINE))


def test_a_mask_without_its_image_is_refused() -> None:
    steps = make_steps("mask", MaskField(), {"scan": ImageField()})
    with pytest.raises(SampleError, match="'scan' is missing"):
        steps(Decoded(labels(4, 4)), Context(row=Row("key", {})))


def test_distances_of_a_volume_are_in_mm_of_the_new_grid() -> None:
    array = np.zeros((8, 1, 1), np.uint8)
    array[4:] = 1
    affine = np.diag([3.0, 1.0, 1.0, 1.0])
    found = run(array, VolumeField(spacing=(1.5, 1, 1)), affine, distance="signed")
    assert found["mask_distance"].dtype == np.float32
    assert found["mask_distance"].shape == found["mask"].shape == (1, 16, 1, 1)
    np.testing.assert_allclose(found["mask_distance"][0, 6:10, 0, 0], [3, 1.5, -1.5, -3])


def test_distances_of_a_picture_are_in_pixels() -> None:
    array = np.array([[0, 0, 1, 1]], np.uint8)
    found = run(array, ImageField(), distance="unsigned", distance_clip=1.5)
    assert found["mask_distance"].tolist() == [[[1.5, 1, 1, 1.5]]]
    assert list(run(array, ImageField())) == ["mask"]


def test_real_masks_follow_their_scans(data_dir: Path) -> None:
    owner = VolumeField(spacing=(1.3, 1.3, 1.3), size=(32, 40, 32))
    fields: dict[str, AnyField] = {"scan": owner}
    for path in sorted((data_dir / "mr_hippocampus" / "images").glob("*.nii.gz"))[:20]:
        context = Context(row=Row("key", {}))
        scan = nifti.decode(SourceFile.whole(path), Limits())
        volume.make_steps("scan", owner, fields)(scan, context)
        mask = nifti.decode(SourceFile.whole(path.parents[1] / "labels" / path.name), Limits())
        found = make_steps("mask", MaskField(), fields)(mask, context)["mask"]
        assert isinstance(found, np.ndarray)
        assert found.shape == (1, 32, 40, 32)
        assert set(np.unique(found)) == {0, 1, 2}


def test_real_contours_become_classes(data_dir: Path) -> None:
    owner = ImageField(mode="L", size=(128, 128))
    folder = data_dir / "cmr_seg_sunnybrook"
    for path in sorted((folder / "labels").glob("*/*.png"))[:10]:
        decoded = picture.decode(SourceFile.whole(path), Limits())
        outputs = run(decoded.array, owner, values={0: 0, 255: 1}, distance="signed")
        assert set(np.unique(outputs["mask"])) <= {0, 1}
        np.testing.assert_array_equal(outputs["mask_distance"] < 0, outputs["mask"] == 1)
