"""DICOM folders: one series is a volume, a pile of single images is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flatout.source import series
from flatout.source.series import are_series, is_dicom_folder, is_dicom_name


def dicom(uid: bytes, explicit: bool = True) -> bytes:
    """The start of a DICOM file that names its series."""
    length = len(uid)
    value = b"UI" + length.to_bytes(2, "little") if explicit else length.to_bytes(4, "little")
    return bytes(128) + b"DICM" + b"\x08\x00\x05\x00CS\x02\x00AB" + bytes.fromhex("20000e00") + value + uid


def fill(folder: Path, files: dict[str, bytes]) -> tuple[str, list[str]]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return str(folder), sorted(files)


@pytest.mark.parametrize(
    ("name", "may_be"),
    [
        ("a.dcm", True),
        ("A.DCM", True),
        ("x.ima", True),
        ("IM0001", True),
        ("1.2.840.113", True),
        ("a.png", False),
        ("README.md", False),
        ("a.dcm.png", False),
        ("scan.nii.gz", False),
    ],
)
def test_names(name: str, may_be: bool) -> None:
    assert is_dicom_name(name) is may_be


@pytest.mark.parametrize("names", [("1.dcm", "2.dcm"), ("IM1", "IM2"), ("1.2.3.1", "1.2.3.2")])
def test_a_folder_of_dicom_files_is_found_by_content(tmp_path: Path, names: tuple[str, ...]) -> None:
    fill(tmp_path, dict.fromkeys(names, dicom(b"1.2")) | {".DS_Store": b"", "DICOMDIR": b"x"})
    assert is_dicom_folder(str(tmp_path))


@pytest.mark.parametrize(
    "files",
    [{}, {"1.dcm": b"nothing"}, {"a.wav": b""}, {"1.dcm": dicom(b"1"), "notes.txt": b""}, {"LICENSE": b"MIT"}],
)
def test_other_folders_are_not(tmp_path: Path, files: dict[str, bytes]) -> None:
    fill(tmp_path, files)
    assert not is_dicom_folder(str(tmp_path))
    assert not is_dicom_folder(str(tmp_path / "missing"))


@pytest.mark.parametrize("explicit", [True, False])
def test_one_series_uid_is_a_series_and_two_are_single_images(tmp_path: Path, explicit: bool) -> None:
    same = fill(tmp_path / "same", {"1.dcm": dicom(b"1.2.3\0", explicit), "2.dcm": dicom(b"1.2.3 ", explicit)})
    other = fill(tmp_path / "other", {"1.dcm": dicom(b"1.2.3", explicit), "2.dcm": dicom(b"1.2.4", explicit)})
    assert are_series([same])
    assert not are_series([other])
    assert are_series([same, same, other])
    assert not are_series([])


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "IM1")
    assert not is_dicom_folder(str(tmp_path))


def test_other_files_beside_the_slices(tmp_path: Path) -> None:
    slices = dict.fromkeys(("IM1", "IM2", "IM3"), dicom(b"1"))
    folder, names = fill(tmp_path, slices | {"AUTHORS": b"", "report.pdf": b"", "export.csv": b""})
    assert is_dicom_folder(folder)
    assert are_series([(folder, [name for name in names if is_dicom_name(name)])])
    for number in range(200):
        (tmp_path / f"{number}.png").touch()
    assert not is_dicom_folder(folder)


def test_many_other_files_beside_more_slices(tmp_path: Path) -> None:
    """A manifest that names the folder reads it as a tree that holds it does."""
    names = [f"IM{number}" for number in range(130)] + [f"{number}.png" for number in range(120)]
    folder, _ = fill(tmp_path, dict.fromkeys(names, dicom(b"1")))
    assert is_dicom_folder(folder)


def test_nobody_lists_a_large_folder_of_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, dict.fromkeys([f"{number}.png" for number in range(300)], b""))
    looked_at: list[str] = []
    monkeypatch.setattr(series, "is_dicom_name", lambda name: bool(looked_at.append(name)))
    assert not is_dicom_folder(str(tmp_path))
    assert len(looked_at) == series.MOST_OTHERS + 1


def test_a_single_file_says_nothing(tmp_path: Path) -> None:
    assert not are_series([fill(tmp_path / "one", {"1.dcm": dicom(b"1")})])


def test_the_real_series(data_dir: Path) -> None:
    folder = data_dir / "dicom_series_torchio"
    assert is_dicom_folder(str(folder))
    assert are_series([(str(folder), sorted(path.name for path in folder.iterdir()))])
