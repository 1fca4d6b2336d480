"""What folders mean: pairs, classes, patients and splits, from names alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import ManifestError
from flatout.source.layouts import Item, Layout, arrange


def lay(*paths: str, kind: str = "image") -> Layout:
    return arrange([Item(path, kind) for path in sorted(paths)])


def rows(layout: Layout) -> list[tuple[str | None, ...]]:
    return list(zip(*layout.columns.values(), strict=True))


def named(folder: str, names: Sequence[str], suffix: str = ".png") -> list[str]:
    return [f"{folder}/{name}{suffix}" for name in names]


def test_images_and_labels_are_paired_by_name() -> None:
    layout = lay(*named("images", "ab"), *named("labels", "ab"))
    assert layout.columns == {
        "image": ["images/a.png", "images/b.png"],
        "mask": ["labels/a.png", "labels/b.png"],
    }
    assert layout.path_columns == ("image", "mask")
    assert layout.notes == []


@pytest.mark.parametrize(
    ("images", "masks"),
    [
        ("images", "masks"),
        ("imgs", "annotations"),
        ("Images", "GT"),
        ("img", "segmentations"),
        ("imagesTr", "labelsTr"),
        ("image", "ground_truth"),
        ("data/images", "data/labels"),
        ("train/images", "train/masks"),
    ],
)
def test_many_names_for_the_two_folders(images: str, masks: str) -> None:
    layout = lay(*named(images, "ab"), *named(masks, "ab"))
    assert layout.columns["image"] == named(images, "ab")
    assert layout.columns["mask"] == named(masks, "ab")


@pytest.mark.parametrize("ending", ["_mask", "-seg", "_label", "_gt", "_segmentation"])
def test_masks_may_have_an_ending_and_another_suffix(ending: str) -> None:
    layout = lay(*named("images/p1", "ab", ".jpg"), *named("masks/p1", [f"a{ending}", f"b{ending}"]))
    assert rows(layout) == [(f"images/p1/{x}.jpg", f"masks/p1/{x}{ending}.png") for x in "ab"]


def test_unpaired_files_stay_as_rows_and_are_counted() -> None:
    layout = lay("images/a.png", "images/b.png", "labels/b.png", "labels/c.png")
    assert rows(layout) == [("images/a.png", None), ("images/b.png", "labels/b.png"), (None, "labels/c.png")]
    assert [note[:20] for note in layout.notes] == ["1 rows have no image", "1 rows have no mask:"]


def test_two_images_of_one_name_share_the_mask() -> None:
    layout = lay("images/a.jpg", "images/a.png", "masks/a.png")
    assert rows(layout) == [("images/a.jpg", "masks/a.png"), ("images/a.png", "masks/a.png")]


def test_medical_decathlon_without_test_labels() -> None:
    paths = [
        *named("imagesTr", "ab", ".nii.gz"),
        *named("labelsTr", "ab", ".nii.gz"),
        *named("imagesTs", "cd", ".nii.gz"),
    ]
    layout = lay(*paths, kind="volume")
    assert list(layout.columns) == ["image", "mask"]
    assert len(rows(layout)) == 2
    assert layout.notes == ["left out 2 files of 'test': only one of images and masks is there"]


def test_two_labelled_parts_are_splits() -> None:
    layout = lay(
        *(p for part in ("Tr", "Ts") for side in ("images", "labels") for p in named(side + part, "ab"))
    )
    assert layout.columns["split"] == ["train", "train", "test", "test"]


def test_nnunet_channels() -> None:
    one = lay("imagesTr/a_0000.nii.gz", "labelsTr/a.nii.gz", kind="volume")
    assert rows(one) == [("imagesTr/a_0000.nii.gz", "labelsTr/a.nii.gz")]
    two = lay(
        *(f"imagesTr/{x}_000{i}.nii.gz" for x in "ab" for i in (0, 1)),
        *named("labelsTr", "ab", ".nii.gz"),
        kind="volume",
    )
    assert two.path_columns == ("image_0000", "image_0001", "mask")
    assert rows(two)[1] == ("imagesTr/b_0000.nii.gz", "imagesTr/b_0001.nii.gz", "labelsTr/b.nii.gz")


@pytest.mark.parametrize("pattern", ["{split}/images/{name}", "images/{split}/{name}"])
def test_split_folders_above_or_below(pattern: str) -> None:
    images = [
        pattern.format(split=split, name=f"{split}{i}.png") for split in ("training", "val") for i in (1, 2)
    ]
    layout = lay(*images, *(path.replace("images", "labels") for path in images))
    assert len(rows(layout)) == 4
    assert dict(zip(layout.columns["image"], layout.columns["split"], strict=True)) == {
        path: "train" if "training" in path else "val" for path in images
    }


def test_classes_are_the_top_folders() -> None:
    layout = lay("cat/1.png", "cat/2.png", "dog/deep/1.png", "dog/2.png")
    assert layout.columns["label"] == ["cat", "cat", "dog", "dog"]
    assert "2 folders, taken as classes" in layout.told


def test_splits_hold_classes() -> None:
    layout = lay(
        *(
            f"{split}/{name}/{i}.png"
            for split in ("train", "valid", "test")
            for name in ("cat", "dog")
            for i in (1, 2)
        )
    )
    assert layout.columns["label"] == ["cat", "cat", "dog", "dog"] * 3
    assert layout.columns["split"] == ["test"] * 4 + ["train"] * 4 + ["val"] * 4
    assert layout.told.endswith("split = folder")


def test_files_beside_split_folders_are_left_out_and_said() -> None:
    layout = lay("logo.png", "train/a.png", "test/b.png")
    assert layout.columns == {"file": ["test/b.png", "train/a.png"], "split": ["test", "train"]}
    assert layout.notes == ["left out 1 files beside the split folders (first: logo.png)"]


def test_a_folder_that_is_no_split_beside_splits_is_refused() -> None:
    """As classes all would be wrong: train and val, and the user's own validation files divided anew."""
    paths = [f"{top}/{name}/{i}.png" for top in ("train", "val") for name in ("cat", "dog") for i in range(5)]
    many = [f"extra/{i}.png" for i in range(3)]
    with pytest.raises(ManifestError, match=r"folders train, val are splits, .* stand extra; move those away"):
        lay(*paths, *many)
    few = lay(*paths, "docs/figure.png")
    assert few.columns["label"] == (["cat"] * 5 + ["dog"] * 5) * 2
    assert few.columns["split"] == ["train"] * 10 + ["val"] * 10
    assert few.notes == ["left out 1 files beside the split folders (first: docs/figure.png)"]
    assert lay("train/1.png", "train/2.png", "bus/1.png", "bus/2.png").columns["label"] == [
        *["bus"] * 2,
        *["train"] * 2,
    ]


@pytest.mark.parametrize("stray", ["a.png", "train/a.png"])
def test_a_stray_file_costs_the_others_no_class(stray: str) -> None:
    """It has none itself, and is listed; of many nobody knows."""
    paths = [f"{name}/{i}.png" for name in ("cat", "dog") for i in range(10)]
    if stray.startswith("train"):
        paths = [f"{top}/{path}" for top in ("train", "val") for path in paths]
    layout = lay(*paths, stray)
    classes = dict(zip(layout.columns["file"], layout.columns["label"], strict=True))
    assert classes == {path: path.split("/")[-2] for path in paths} | {stray: None}
    (note,) = layout.notes
    assert note.startswith(
        f"1 files beside the folders of the others (first: {stray}) have no class: they will fail"
    )
    many = lay(*paths, *(f"{stray}{i}.png" for i in range(6)))
    assert "label" not in many.columns
    assert len(many.columns["file"]) == len(paths) + 6
    assert any(
        "6 files stand beside the folders of the others, so folders are no classes" in n for n in many.notes
    )


def test_a_flat_split_beside_one_with_classes_stays_whole() -> None:
    """Test images without labels: they are listed, none is lost in silence."""
    paths = [f"train/{name}/{i}.png" for name in ("cat", "dog") for i in range(50)]
    layout = lay(*paths, *(f"test/{i}.png" for i in range(8)))
    assert layout.columns["split"].count("test") == layout.columns["label"].count(None) == 8


def test_files_beside_a_single_folder_stay() -> None:
    assert lay("first.png", *(f"more/{i}.png" for i in range(20))).columns["file"][0] == "first.png"


def test_one_file_beside_the_folders_of_patients_is_one_of_its_own() -> None:
    layout = lay(*(f"p{i:02d}/scan.nii.gz" for i in range(30)), "x.nii.gz", kind="volume")
    assert layout.columns["group"].count(None) == 1
    assert layout.notes == []


def test_a_file_or_two_a_folder_are_patients() -> None:
    layout = lay(*(f"p{i}/scan.nii.gz" for i in range(30)), kind="volume")
    assert list(layout.columns) == ["file", "group"]
    assert "groups" in layout.told


@pytest.mark.parametrize(
    "paths", [["a.wav", "b.wav"], ["wav/a.wav", "wav/b.wav"], ["x/y/a.wav"], ["a.wav", "d/b.wav"]]
)
def test_files_alone(paths: list[str]) -> None:
    assert lay(*paths, kind="signal").columns == {"file": paths}


def test_signals_are_never_pairs() -> None:
    assert "mask" not in lay("images/a.wav", "labels/a.wav", kind="signal").columns


NAMES = st.sampled_from(
    ["images", "labels", "imagesTr", "masks", "train", "val", "a", "b", "case_0000", "x_mask"]
)


@given(
    paths=st.sets(
        st.lists(NAMES, min_size=1, max_size=4).map(lambda parts: "/".join(parts) + ".png"), min_size=1
    )
)
def test_no_file_stands_twice_and_none_vanishes_unsaid(paths: set[str]) -> None:
    try:
        layout = lay(*paths)
    except ManifestError as error:
        told = str(error)
        layout = None
    if layout is None:
        assert "folders train, val are splits, but beside them stand" in told
        assert any("/train/" in f"/{path}" for path in paths)
        assert any("/val/" in f"/{path}" for path in paths)
        return
    images = [
        value for name in layout.path_columns if name != "mask" for value in layout.columns[name] if value
    ]
    masks = {value for value in layout.columns.get("mask", []) if value}
    assert len(set(images)) == len(images)
    assert set(images) | masks <= paths
    num_left_out = sum(int(note.split()[2]) for note in layout.notes if note.startswith("left out"))
    assert len(set(images) | masks) + num_left_out == len(paths)
    firsts = [
        next(layout.columns[n][i] for n in layout.path_columns if layout.columns[n][i])
        for i in range(len(rows(layout)))
    ]
    assert firsts == sorted(firsts, key=str)


@pytest.mark.parametrize(
    ("slices", "told"),
    [
        ([0], "one file"),
        ([0, 0], "2 files"),
        ([24], "one DICOM series of 24 slices"),
        ([1], "one DICOM series of 1 slice"),
        ([20, 4], "2 DICOM series of 24 slices"),
        ([0, 24], "one file and one DICOM series of 24 slices"),
    ],
)
def test_series_are_counted_as_what_they_are(slices: list[int], told: str) -> None:
    items = [Item(f"{number}", "volume", num) for number, num in enumerate(slices)]
    assert arrange(items).told == told
