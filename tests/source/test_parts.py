"""Parts: one manifest per split joins into one table whose paths still end where they began."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from flatout.errors import ManifestError, SampleError
from flatout.source.parts import Part, join_parts, read_part, split_tables
from flatout.source.paths import resolve_path


def part(table: dict[str, object], base: Path, paths: tuple[str, ...] = ("file",)) -> Part:
    columns = {n: pa.array(v, pa.large_string()) if n in paths else pa.array(v) for n, v in table.items()}
    return Part("m.csv", pa.table(columns), base, paths)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("a", "b", "b/deep"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.wav").write_text(name)
    (tmp_path / "secret").write_text("secret")
    return tmp_path / "a", tmp_path / "b"


def test_paths_of_two_folders_keep_their_files(folders: tuple[Path, Path]) -> None:
    a, b = folders
    joined = join_parts([part({"file": ["x.wav", f"{a}/x.wav"]}, a), part({"file": ["deep/x.wav"]}, b)], False)
    assert joined.base == a.parent
    assert joined.table["file"].to_pylist() == ["a/x.wav", "a/x.wav", "b/deep/x.wav"]
    texts = [resolve_path(p, joined.base, False).read_text() for p in joined.table["file"].to_pylist()]
    assert texts == ["a", "a", "b/deep"]


@pytest.mark.parametrize(
    "value", ["../secret", "../b/x.wav", "{top}/secret", "{top}/b/x.wav", "", "~/x", "s3://b/x", "/etc/passwd"]
)
def test_a_path_still_may_not_leave_its_own_folder(folders: tuple[Path, Path], value: str) -> None:
    a, b = folders
    hostile = part({"file": [value.format(top=a.parent), None]}, a)
    joined = join_parts([hostile, part({"file": ["x.wav"]}, b)], False)
    with pytest.raises(SampleError):
        resolve_path(joined.table["file"][0].as_py(), joined.base, False)
    assert joined.table["file"][1].as_py() is None


def test_leaving_can_be_allowed(folders: tuple[Path, Path]) -> None:
    a, b = folders
    joined = join_parts([part({"file": ["../secret", f"{b}/x.wav"]}, a), part({"file": ["x.wav"]}, b)], True)
    texts = [resolve_path(p, joined.base, True).read_text() for p in joined.table["file"].to_pylist()]
    assert texts == ["secret", "b", "b"]


def test_columns_that_differ_are_brought_together(tmp_path: Path) -> None:
    one = part({"file": ["x"], "n": [1], "m": [1], "only": ["a"], "none": pa.nulls(1)}, tmp_path)
    two = part({"file": ["y"], "n": [0.5], "m": ["b"], "none": [3]}, tmp_path)
    joined = join_parts([one, two], False)
    assert joined.table.to_pydict() == {
        "file": ["x", "y"], "n": [1.0, 0.5], "m": ["1", "b"], "only": ["a", None], "none": [None, 3],
    }  # fmt: skip


def test_the_split_is_added_or_compared(tmp_path: Path) -> None:
    plain = part({"file": ["x", "y"]}, tmp_path)
    assert plain.with_split("val", "split").table["split"].to_pylist() == ["val", "val"]
    spelled = part({"file": ["x", "y"], "split": ["Validation", None]}, tmp_path)
    assert spelled.with_split("val", "split").table["split"].to_pylist() == ["val", "val"]
    wrong = part({"file": ["x", "y"], "split": ["val", "train"]}, tmp_path)
    with pytest.raises(
        ManifestError, match="row 2: column 'split' says 'train', but this manifest is given as 'val'"
    ):
        wrong.with_split("val", "split")


def test_tables_named_after_splits_are_found(tmp_path: Path) -> None:
    for name in ("manifest_test.jsonl", "manifest_train.jsonl", "valid.csv", "other.csv", "train.txt"):
        (tmp_path / name).write_text("")
    found = {split: path.name for split, path in split_tables(tmp_path).items()}
    assert found == {"train": "manifest_train.jsonl", "val": "valid.csv", "test": "manifest_test.jsonl"}
    assert list(found) == ["train", "val", "test"]
    (tmp_path / "training.csv").write_text("")
    assert split_tables(tmp_path) == {}
    assert split_tables(tmp_path / "valid.csv") == {}


def test_a_folder_below_base_path_has_paths_from_there(tmp_path: Path) -> None:
    (tmp_path / "data" / "wav").mkdir(parents=True)
    (tmp_path / "data" / "wav" / "x.wav").write_text("")
    found = read_part(tmp_path / "data", tmp_path, (), False)
    assert found.table["file"].to_pylist() == ["data/wav/x.wav"]
    with pytest.raises(ManifestError, match="leave base_path out"):
        read_part(tmp_path / "data", tmp_path / "data" / "wav", (), False)


def test_a_table_without_a_heading_is_refused(tmp_path: Path) -> None:
    """Its first sample would be lost, and its columns called like it."""
    (tmp_path / "wav").mkdir()
    for number in range(3):
        (tmp_path / "wav" / f"{number}.wav").touch()
    path = tmp_path / "m.csv"
    path.write_text("".join(f"wav/{number}.wav,{number}\n" for number in range(3)))
    with pytest.raises(ManifestError, match=r"no heading: its first line names the file 'wav/0\.wav'\. Put"):
        read_part(path, None, (), False)
    path.write_text(f"T1w.nii.gz,{'long' * 99}.wav\na.nii.gz,b\n")  # called like files, but there are none
    assert read_part(path, None, (), False).num_rows == 1
