"""Path columns are found by what they name, not by what they are called."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from flatout.source.columns import common_suffix, find_path_columns, first_values, kinds_by_suffix, suffix_of


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("a.wav", ".wav"),
        ("d.x/a.NII.GZ", ".nii.gz"),
        ("a.dcm.png", ".png"),
        ("a", ""),
        (".hidden", ""),
        ("d.x/a", ""),
        ("a.", "."),
        ("a.b.c.npy", ".npy"),
        ("x.gz", ".gz"),
    ],
)
def test_suffixes(name: str, suffix: str) -> None:
    assert suffix_of(name) == suffix


def test_each_suffix_speaks_for_one_kind() -> None:
    kinds = kinds_by_suffix()
    wanted = {
        ".nii.gz": "volume",
        "/": "volume",
        ".png": "image",
        ".dcm": "image",
        ".wav": "signal",
        ".npy": "array",
        ".npz": "array",
        ".csv": "sequence",
    }
    assert wanted.items() <= kinds.items()


def columns(**values: list[object]) -> pa.Table:
    return pa.table({name: pa.array(v, pa.large_string()) for name, v in values.items()})


def test_paths_are_found_among_labels_texts_and_folders(tmp_path: Path) -> None:
    for name in ("AS", "MR"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.wav").write_bytes(b"")
    table = columns(
        file=["AS/1.wav", "MR/1.wav"],
        label=["AS", "MR"],
        text=["a word. and more", "see fig.3"],
        missing=["no/1.nii.gz", "no/2.nii.gz"],
        empty=[None, None],
    ).append_column("n", pa.array([1, 2]))
    found, notes = find_path_columns(table, tmp_path)
    assert found == ["file", "missing"]
    assert len(notes) == 1
    assert "none of the first 2 paths of 'missing' exists" in notes[0]


@pytest.mark.parametrize("name", ["key", "Image_ID"])
def test_ids_that_look_like_files_are_keys_beside_paths_that_lead_somewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "wav").mkdir()
    (tmp_path / "wav" / "a.wav").write_bytes(b"")
    ids, files = ["a.wav", "b.wav"], ["wav/a.wav", "wav/b.wav"]
    assert find_path_columns(columns(**{name: ids, "file": files}), tmp_path) == (["file"], [])
    alone, notes = find_path_columns(columns(**{name: ids}), tmp_path)  # nothing else could be the path
    assert (alone, len(notes)) == ([name], 1)
    (tmp_path / "a.wav").write_bytes(b"")
    assert find_path_columns(columns(**{name: ids, "file": files}), tmp_path) == ([name, "file"], [])


def test_one_existing_file_of_an_unknown_suffix_is_enough(tmp_path: Path) -> None:
    (tmp_path / "7.mha").write_bytes(b"")
    table = columns(scan=[f"{i}.mha" for i in range(50)], other=[f"{i}.xyz" for i in range(50)])
    assert find_path_columns(table, tmp_path) == (["scan"], [])


def test_folders_of_dicom_files_are_paths_and_class_folders_are_not(tmp_path: Path) -> None:
    (tmp_path / "p1").mkdir()
    (tmp_path / "p1" / "IM1").write_bytes(bytes(128) + b"DICM")
    (tmp_path / "cat").mkdir()
    table = columns(series=["p0", "p1"], kind=["cat", "cat"])
    assert find_path_columns(table, tmp_path) == (["series"], [])
    assert common_suffix(["p0", "1.2.840.7"]) == "/"
    assert common_suffix(["a.wav", "b.wav", "c.flac"]) == ".wav"
    assert common_suffix([None]) == ""
    assert common_suffix(["a.mha"]) == ".mha"


@pytest.mark.parametrize("value", ["\0", "../..", "x" * 5000, "~", "s3://a/b"])
def test_hostile_values_are_only_looked_at(tmp_path: Path, value: str) -> None:
    assert find_path_columns(columns(a=[value, value]), tmp_path)[0] == []


def test_values_are_looked_for_beyond_missing_ones() -> None:
    table = columns(a=[None] * 100 + ["x"] * 100)
    assert first_values(table, "a") == ["x"] * 50
