"""Folder trees: deterministic, complete, and never out of the tree through a link."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from flatout.errors import ManifestError
from flatout.source.folders import STORE_FILES, STORE_SHARDS, read_folder, scan_tree
from flatout.store.lock import OWNER
from flatout.store.log import LOG
from flatout.store.metadata import JOURNAL, ROOT, SHARD_FOLDER


def fill(root: Path, *names: str, content: bytes = b"") -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def test_files_come_in_bytewise_order_without_hidden_ones(tmp_path: Path) -> None:
    names = ["b/1.png", "a.png", "a/z.png", "a-b.png", "B.png", "ä.png", "a/10.png", "a/9.png", "z/é.png"]
    fill(tmp_path, *names, ".hidden.png", "a/.x/1.png", ".git/1.png", "__MACOSX/1.png", "a/Thumbs.db")
    found = scan_tree(tmp_path)
    assert found.files == sorted(names, key=lambda name: name.encode())
    assert found.notes == []


def test_links_out_of_the_tree_are_not_entered_unless_allowed(tmp_path: Path) -> None:
    root, outside = fill(tmp_path / "root", "a.png"), fill(tmp_path / "outside", "secret.png")
    (root / "link").symlink_to(outside)
    (root / "file.png").symlink_to(outside / "secret.png")
    found = scan_tree(root)
    assert found.files == ["a.png", "file.png"]
    assert found.notes == ["root: left out 1 linked folders that lead outside or in a circle"]
    assert scan_tree(root, allow_outside=True).files == ["a.png", "file.png", "link/secret.png"]


def test_links_within_the_tree_are_followed_but_never_in_circles(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.png", "b/2.png")
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "a" / "self").symlink_to(".")
    (tmp_path / "a" / "to_b").symlink_to("../b")
    (tmp_path / "b" / "to_a").symlink_to("../a")
    found = scan_tree(tmp_path)
    assert {"a/1.png", "b/2.png", "a/to_b/2.png", "b/to_a/1.png"} <= set(found.files)
    assert len(found.files) < 20
    assert "in a circle" in found.notes[0]


def test_pipes_are_left_out_and_broken_links_are_kept(tmp_path: Path) -> None:
    fill(tmp_path, "a.png")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "broken.png").symlink_to("nowhere.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    found = scan_tree(tmp_path)
    assert found.files == ["a.png", "broken.png", "loop.png"]
    assert found.notes == [f"{tmp_path.name}: left out 1 devices, pipes and sockets"]


def test_names_that_are_not_utf8_are_left_out_and_counted(tmp_path: Path) -> None:
    fill(tmp_path, "a.png")
    try:
        with open(os.fsencode(tmp_path) + b"/\xff.png", "wb"):
            pass
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    assert scan_tree(tmp_path).files == ["a.png"]
    assert "not UTF-8" in scan_tree(tmp_path).notes[0]


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="No such file"):
        scan_tree(tmp_path / "missing")


def test_stores_are_no_sources(tmp_path: Path) -> None:
    assert {ROOT, JOURNAL, LOG, OWNER} == STORE_FILES
    assert SHARD_FOLDER == STORE_SHARDS
    root = fill(tmp_path / "root", "a.png", "b/c.png", "shards/d.png", "b/shards/e.png", "b/shards.png")
    for name in STORE_FILES:
        fill(root, f"{name}-store/{name}", f"{name}-store/shards/000.h5", f"{name}-store/x.png")
    fill(root, "b/old/data_metadata.json", "b/old/shards/0.h5", "b/old/x.png")
    found = scan_tree(root)
    assert found.files == ["a.png", "b/c.png", "b/shards.png", "b/shards/e.png", "shards/d.png"]
    left_out = [*(f"{name}-store" for name in STORE_FILES), "b/old"]
    assert sorted(found.notes) == sorted(f"root: left out the store '{name}'" for name in left_out)
    with pytest.raises(ManifestError, match="old is a store, or holds one among other files"):
        scan_tree(root / "b" / "old")


def test_tables_that_name_the_files_are_noted(tmp_path: Path) -> None:
    root = fill(tmp_path / "root", "a/1.png", "b/2.png")
    fill(root, "labels.csv", content=b"file,label\na/1.png,cat\n")
    (told,) = [note for note in read_folder(root).notes if "names files" in note]
    assert told.startswith("labels.csv names files of root, but a folder is read by its files alone")
    assert str(root / "labels.csv") in told


def test_what_is_not_a_sample_is_left_out_and_said(tmp_path: Path) -> None:
    fill(
        tmp_path,
        "cat/1.png",
        "cat/2.jpg",
        "dog/1.png",
        "dog/2.png",
        "README.md",
        "labels.csv",
        "cat/notes.txt",
        "LICENSE",
    )
    part = read_folder(tmp_path)
    assert part.table.to_pydict() == {
        "file": ["cat/1.png", "cat/2.jpg", "dog/1.png", "dog/2.png"],
        "label": ["cat", "cat", "dog", "dog"],
    }
    assert part.base == tmp_path
    assert "not samples of kind image" in part.notes[0]
    assert all(told in part.notes[0] for told in ("1 .md", "1 .csv", "1 .txt"))


@pytest.mark.parametrize("names", [[], ["a.docx", "b/c.docx", "LICENSE"]])
def test_nothing_to_decode_is_an_error(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(ManifestError, match="no file that a decoder knows"):
        read_folder(fill(tmp_path, *names))


def test_records_beside_a_table_of_outcomes(tmp_path: Path) -> None:
    part = read_folder(fill(tmp_path, *(f"records/{i}.txt" for i in range(5)), "outcomes.csv"))
    assert part.table.num_rows == 5


def series(uid: bytes) -> bytes:
    return bytes(128) + b"DICM" + bytes.fromhex("20000e00") + b"UI" + len(uid).to_bytes(2, "little") + uid


def test_each_dicom_series_is_one_volume(tmp_path: Path) -> None:
    for patient in ("p1", "p2", "p3"):
        for name in ("IM1", "IM2", "IM3"):
            fill(tmp_path, f"{patient}/ct/{name}", content=series(patient.encode()))
    fill(tmp_path, "notes.txt", "p1/report.txt", "p1/ct/report.txt")
    part = read_folder(tmp_path)
    assert part.table["file"].to_pylist() == ["p1/ct", "p2/ct", "p3/ct"]
    assert part.table["group"].to_pylist() == ["p1", "p2", "p3"]
    assert any("1 files beside DICOM series (first: p1/ct/report.txt)" in note for note in part.notes)


@pytest.mark.parametrize("stray", ["IM9.dcm", "p2/ct/AUTHORS", "p2/ct/a.png", "p2/ct/notes.txt", "export.csv"])
def test_a_stray_file_costs_no_series(tmp_path: Path, stray: str) -> None:
    for patient in ("p1", "p2", "p3"):
        for name in ("IM1", "IM2", "IM3"):
            fill(tmp_path, f"{patient}/ct/{name}", content=series(patient.encode()))
    fill(tmp_path, stray, content=series(b"other") if stray.endswith(".dcm") else b"\x89PNG")
    part = read_folder(tmp_path)
    assert part.table["file"].to_pylist() == ["p1/ct", "p2/ct", "p3/ct"]
    assert part.base == tmp_path
    is_slice = stray.endswith("AUTHORS")  # by its name; the decoder tells that it is none
    assert is_slice or any("left out" in note and (stray in note or ".csv" in note) for note in part.notes)


def test_many_slices_beside_folders_of_series_are_refused(tmp_path: Path) -> None:
    """A scan with its localizer in a folder below: the large series must not be the one that is left out."""
    for number in range(9):
        fill(tmp_path, f"{number}.dcm", content=series(b"large"))
    for number in range(3):
        fill(tmp_path, f"localizer/{number}.dcm", content=series(b"small"))
    with pytest.raises(ManifestError, match=r"holds 9 DICOM slices beside folders of series \(localizer"):
        read_folder(tmp_path)


def test_a_series_beside_folders_of_larger_ones_is_refused_as_well(tmp_path: Path) -> None:
    """A third of the volumes is no stray."""
    for place, count in (("", 4), ("p1/", 5), ("p2/", 5)):
        for number in range(count):
            fill(tmp_path, f"{place}{number}.dcm", content=series(place.encode()))
    with pytest.raises(ManifestError, match=r"holds 4 DICOM slices beside folders of series \(p1"):
        read_folder(tmp_path)


def test_the_files_of_a_damaged_series_do_not_outvote_the_others(tmp_path: Path) -> None:
    """Counted as files: one folder that is no series has more of them than there are series."""
    for patient in ("p1", "p2", "p3"):
        for number in range(5):
            fill(tmp_path, f"{patient}/IM{number}.dcm", content=series(patient.encode()))
            if patient == "p2":
                fill(tmp_path, f"{patient}/preview{number}.txt")
    part = read_folder(tmp_path)
    assert part.table["file"].to_pylist() == ["p1", "p3"]
    (told,) = (note for note in part.notes if "not samples of kind volume" in note)
    assert "5 .dcm" in told


def test_dicom_files_of_many_series_are_images_of_a_class(tmp_path: Path) -> None:
    for i in range(4):
        fill(tmp_path, f"{'healthy' if i % 2 else 'ill'}/{i}.dcm", content=series(b"1.2.%d" % i))
    part = read_folder(tmp_path)
    assert part.table["file"].to_pylist() == ["healthy/1.dcm", "healthy/3.dcm", "ill/0.dcm", "ill/2.dcm"]
    assert part.table["label"].to_pylist() == ["healthy", "healthy", "ill", "ill"]


def test_a_root_that_is_a_series_is_one_row(data_dir: Path) -> None:
    part = read_folder(data_dir / "dicom_series_torchio")
    assert part.table.to_pydict() == {"file": ["dicom_series_torchio"]}
    assert part.base == data_dir


def test_series_with_masks(data_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(data_dir / "dicom_series_torchio", tmp_path / "images" / "case.1")
    fill(tmp_path, "labels/case.1.nii.gz")
    part = read_folder(tmp_path)
    assert part.table.to_pydict() == {"image": ["images/case.1"], "mask": ["labels/case.1.nii.gz"]}


def test_the_same_tree_gives_the_same_table_wherever_it_stands(tmp_path: Path) -> None:
    names = [f"c{i % 3}/{i}.wav" for i in range(30)]
    one = read_folder(fill(tmp_path / "one", *names)).table
    two = read_folder(fill(tmp_path / "two", *reversed(names))).table
    assert one.equals(two)
