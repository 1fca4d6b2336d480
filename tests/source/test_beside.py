"""Tables in and beside a folder: those that name its files, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.source.beside import MAX_NAMES, notes_on_tables, tables_that_name

FILES = ["AS/New_AS_001.wav", "AS/New_AS_004.wav", "N/New_N_2.wav", "x.wav"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "set" / "heart").mkdir(parents=True)
    return tmp_path / "set" / "heart"


@pytest.mark.parametrize("place", [".", ".."])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.csv", "file,label\nAS/New_AS_001.wav,AS\n"),
        ("labels.CSV", "file;label\n./AS/New_AS_001.wav;AS\n"),
        ("labels.tsv", "file\tlabel\nNew_AS_004.wav\tAS\n"),
        ("labels.csv", "id,label\nNew_AS_001,AS\n"),
        ("labels.csv", "heart/AS/New_AS_001.wav,AS\n"),
        ("labels.csv", 'AS\\New_AS_001.wav,"AS"\n'),
        ("labels.csv", "file,label\nx.wav,AS\n"),
        ("m.jsonl", '{"audio_filepath": "N/New_N_2.wav", "duration": 2}\n'),
        ("m.json", '{"audio_filepath": "N/New_N_2.wav", "duration": 2}\n'),
    ],
)
def test_a_table_that_names_files_is_found(root: Path, place: str, name: str, text: str) -> None:
    (root / place / name).write_text(text)
    assert tables_that_name(root, FILES) == [root / place / name if place == "." else root.parent / name]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.csv", "file,label\nother/New_AS_001.wav,AS\n"),
        ("labels.csv", "file,label\nNew_AS_0011.wav,AS\n"),
        ("labels.csv", "x,y\n1,2\n"),  # the stem of x.wav says nothing
        ("labels.txt", "AS/New_AS_001.wav\n"),
        (".labels.csv", "AS/New_AS_001.wav\n"),
        ("dataset.json", '{\n "training": [{"image": "./AS/New_AS_001.wav"}]\n}\n'),
        ("labels.csv", "\0\udcff"),
    ],
)
def test_others_are_not(root: Path, name: str, text: str) -> None:
    (root.parent / name).write_bytes(text.encode(errors="surrogateescape"))
    assert tables_that_name(root, FILES) == []


def test_files_of_the_whole_tree_are_looked_for(root: Path) -> None:
    files = [f"a/{number:06d}.wav" for number in range(10 * MAX_NAMES)]
    (root / "last.csv").write_text("file\n" + "\n".join(files[-40:]))
    assert tables_that_name(root, files) == [root / "last.csv"]


def test_folders_and_what_cannot_be_read_are_passed_over(root: Path) -> None:
    (root / "labels.csv").mkdir()
    (root / "gone.csv").symlink_to(root / "nowhere.csv")
    assert tables_that_name(root, FILES) == []
    assert notes_on_tables(root / "not there", FILES) == []
