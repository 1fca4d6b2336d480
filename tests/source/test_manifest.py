"""The manifest as a whole: settings in, rows with keys out, from every kind of source."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.config.fields import ImageField, LabelField, SequenceField, SignalField, TextField
from flatout.config.source import SourceSettings, SplitSection
from flatout.errors import ConfigError, ManifestError, ManifestMissingError, SampleError
from flatout.source.files import SourceFile
from flatout.source.lists import ListCell, read_cells
from flatout.source.manifest import Manifest, manifest_of_range, read_manifest
from flatout.types import Limits


def read(manifest: Any, **settings: Any) -> Manifest:
    paths = {k: str(v) for k, v in manifest.items()} if isinstance(manifest, dict) else str(manifest)
    return read_manifest(SourceSettings(manifest=paths, **settings))


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / name).write_text(text)
    return folder / name


CSV = "file,label,age\na.wav,1,2.5\nb.wav,0,\nc.wav,1,7\n"


def test_a_csv(tmp_path: Path) -> None:
    manifest = read(write(tmp_path, "m.csv", CSV))
    assert len(manifest) == 3
    assert manifest.keys.to_pylist() == ["a.wav", "b.wav", "c.wav"]
    assert manifest.base_path == tmp_path
    assert manifest.path_columns == ("file",)
    rows = manifest.rows([2, 1])
    assert [row.key for row in rows] == ["c.wav", "b.wav"]
    assert rows[1].values == {"file": "b.wav", "label": 0, "age": None}
    assert manifest.split_column is None
    assert "key: column 'file'" in manifest.notes


def test_base_path_is_taken_from_the_settings(tmp_path: Path) -> None:
    path = write(tmp_path / "tables", "m.csv", CSV)
    assert read(path, base_path=str(tmp_path)).base_path == tmp_path
    with pytest.raises(ManifestMissingError, match="is not a folder"):  # a wrong path: exit code 2
        read(path, base_path=str(tmp_path / "none"))


def test_keys_groups_and_texts_stay_text(tmp_path: Path) -> None:
    path = write(tmp_path, "m.csv", "no,patient,words,n\n1.10,1.0,12,1\n1.1,1,13,2\n")
    manifest = read(path, key_column="no", splits=SplitSection(group="patient"), fields={"words": TextField()})
    assert manifest.keys.to_pylist() == ["1.10", "1.1"]
    assert manifest.rows([0])[0].values == {"no": "1.10", "patient": "1.0", "words": "12", "n": 1}


def test_digits_in_a_text_column_stay_text(tmp_path: Path) -> None:
    manifest = read(write(tmp_path, "m.csv", "file,Text\na.wav,12\nb.wav,7\n"))
    assert manifest.table["Text"].to_pylist() == ["12", "7"]


def test_the_rule_of_the_first_reading_keeps_the_keys(tmp_path: Path) -> None:
    first = read(write(tmp_path, "m.csv", "file,code,n\na.wav,01,1\na.wav,02,2.50\n"))
    assert first.key_rule == "paths+content:file|code,n"
    later = write(tmp_path, "m.csv", "id,n,code,file\n1,l2,07,b.wav\n2,2.50,02,a.wav\n3,1,01,a.wav\n")
    assert read(later).key_rule == "column:id"
    again = read(later, key_rule=first.key_rule)
    assert again.key_rule == first.key_rule
    assert again.keys.to_pylist()[:0:-1] == first.keys.to_pylist()
    assert read(later, key_rule=first.key_rule, key_column="code").keys.to_pylist() == ["07", "02", "01"]


def test_columns_of_a_rule_stay_text(tmp_path: Path) -> None:
    path = write(tmp_path, "m.csv", "case,n\n1.0,1\n2.50,2\n")
    assert read(path, key_rule="column:case").keys.to_pylist() == ["1.0", "2.50"]
    assert read(path, key_rule="paths:case").keys.to_pylist() == ["1.0", "2.50"]


def test_no_manifest_is_an_error() -> None:
    with pytest.raises(ManifestError, match="no manifest"):
        read_manifest(SourceSettings())


def test_fields_say_which_columns_are_paths(tmp_path: Path) -> None:
    path = write(tmp_path, "m.csv", "scan,label,note\n007,x,a.wav\n008,y,b.wav\n")
    manifest = read(path, fields={"image": ImageField(column="scan"), "label": LabelField()})
    assert manifest.path_columns == ("scan",)
    assert manifest.rows([0])[0].values["scan"] == "007"
    with pytest.raises(ConfigError, match=r"field 'image' wants column 'image'; there are: scan, label, note"):
        read(path, fields={"image": ImageField()})
    with pytest.raises(ConfigError, match="field 's' wants column 'dy'"):
        read(path, fields={"s": SequenceField(columns=["scan", "dy"])})


def test_one_manifest_per_split(tmp_path: Path) -> None:
    one, two = write(tmp_path, "1.csv", CSV), write(tmp_path, "2.csv", CSV.replace(".wav", ".flac"))
    manifest = read({"training": one, "dev": two})
    assert manifest.split_column == "split"
    assert manifest.table["split"].to_pylist() == ["train"] * 3 + ["val"] * 3
    assert manifest.keys[3].as_py() == "a.flac"
    with pytest.raises(ManifestError, match="unknown split 'hold'"):
        read({"train": one, "hold": two})
    held = read({"train": one, "hold": two}, splits=SplitSection(ratios={"hold": 1}, guess=False))
    assert (len(held), held.split_column) == (6, "split")


def test_equal_names_in_two_folders_stay_apart(tmp_path: Path) -> None:
    one, two = write(tmp_path / "x", "m.csv", CSV), write(tmp_path / "y", "m.csv", CSV)
    manifest = read({"train": one, "test": two})
    assert manifest.base_path == tmp_path
    assert manifest.keys.to_pylist()[::3] == ["x/a.wav", "y/a.wav"]
    with_base = read({"train": one, "test": two}, base_path=str(tmp_path))
    assert with_base.table["file"].to_pylist() == ["a.wav", "b.wav", "c.wav"] * 2
    assert len(set(with_base.keys.to_pylist())) == 6


def test_a_split_column_is_noticed_only_if_it_names_splits(tmp_path: Path) -> None:
    text = "file,{name}\na.wav,{value}\nb.wav,Test\n"
    assert read(write(tmp_path, "m.csv", text.format(name="Subset", value="valid"))).split_column == "Subset"
    assert read(write(tmp_path, "m.csv", text.format(name="split", value="tset"))).split_column == "split"
    sides = write(tmp_path, "m.csv", "file,split\na.wav,left\nb.wav,right\n")
    assert read(sides).split_column is None
    path = write(tmp_path, "m.csv", text.format(name="part", value="train"))
    assert read(path, splits=SplitSection(column="part")).split_column == "part"
    with pytest.raises(ConfigError, match=r"splits\.column names column 'no'"):
        read(path, splits=SplitSection(column="no"))


def test_a_folder(tmp_path: Path) -> None:
    for name in ("train/images/a.png", "train/labels/a.png", "test/images/b.png", "test/labels/b.png"):
        write((tmp_path / name).parent, Path(name).name, "")
    manifest = read(tmp_path)
    assert manifest.rows([1])[0].values == {
        "image": "train/images/a.png",
        "mask": "train/labels/a.png",
        "split": "train",
    }
    assert manifest.split_column == "split"
    assert manifest.path_columns == ("image", "mask")


def test_lists_become_cells(tmp_path: Path) -> None:
    table = pa.table({"id": ["x", "y", "z"], "dx": [[1, 2], [3], []], "dy": [[4, 5], [6], []]})
    pq.write_table(table, tmp_path / "m.parquet", row_group_size=2)
    manifest = read(tmp_path / "m.parquet")
    row = manifest.rows([1])[0]
    assert row.values["dx"] == ListCell(tmp_path / "m.parquet", 0, 1, "dx", (0, 0, 0))
    assert read_cells({name: row.values[name] for name in ("dx", "dy")}).array.tolist() == [[3, 6]]
    assert manifest.take([2, 0]).rows([1])[0].values["dy"].row == 0
    assert len(set(manifest.digests(["dx"]).tolist())) == 3


def test_lists_alone_have_keys_of_their_content(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1], [2], [1]]}), tmp_path / "m.parquet")
    manifest = read(tmp_path / "m.parquet")
    assert len(set(manifest.keys.to_pylist())) == len(manifest) == 3
    taken = manifest.take([1])
    assert len(taken) == 1
    assert taken.rows([0])[0].values["x"].row == 1
    assert taken.digests(["x"]) == manifest.digests(["x"])[1]


def test_lists_beside_a_manifest_without(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["x"], "x": [[1]]}), tmp_path / "m.parquet")
    manifest = read({"train": tmp_path / "m.parquet", "val": write(tmp_path, "m.csv", "id,n\ny,1\n")})
    assert manifest.rows([1])[0].values == {"id": "y", "n": 1, "x": None, "split": "val"}


def test_tarred_audio(tmp_path: Path) -> None:
    for i in (0, 1):
        with tarfile.open(tmp_path / f"audio_{i}.tar", "w") as tar:
            info = tarfile.TarInfo(f"{i}.wav")
            info.size = 5
            tar.addfile(info, io.BytesIO(b"data%d" % i))
    lines = [{"audio_filepath": f"{i}.wav", "duration": 1.0, "text": "x", "shard_id": i} for i in (1, 0, 2)]
    path = write(tmp_path, "tarred.json", "\n".join(map(json.dumps, lines)))
    manifest = read(path, tarred_audio_filepaths="audio__OP_0..1_CL_.tar")
    files = [row.values["audio_filepath"] for row in manifest.rows(range(3))]
    assert all(isinstance(file, SourceFile) for file in files)
    assert [file.read_bytes(Limits()) for file in files[:2]] == [b"data1", b"data0"]
    with pytest.raises(SampleError, match=r"no member '2\.wav'"):
        files[2].read_bytes(Limits())
    assert manifest.keys.to_pylist() == ["1.wav", "0.wav", "2.wav"]
    assert manifest.path_columns == ("audio_filepath",)
    assert not any("base_path" in note for note in manifest.notes)
    assert any("base_path" in note for note in read(path).notes)
    assert manifest.take([1]).rows([0])[0].values["audio_filepath"] == files[1]
    named = read(path, tarred_audio_filepaths="audio_0.tar", fields={"s": SignalField(column="audio_filepath")})
    assert named.tar is not None
    with pytest.raises(ManifestError, match="no column names the members"):
        read(write(tmp_path, "m.csv", "a\n1\n"), tarred_audio_filepaths="audio_0.tar")


@pytest.mark.parametrize("folders", [("", ""), ("train", "val")])
def test_one_manifest_of_several_may_be_of_plain_files(tmp_path: Path, folders: tuple[str, str]) -> None:
    """NeMo's train is tarred, its validation is not; a file named like a member is still the file."""
    with tarfile.open(tmp_path / "audio_0.tar", "w") as tar:
        for name in ("a.wav", "b.wav"):
            info = tarfile.TarInfo(name)
            info.size = 5
            tar.addfile(info, io.BytesIO(b"tar " + name[:1].encode()))
    train, val = (tmp_path / folder for folder in folders)
    val.mkdir(exist_ok=True)
    (val / "clean").mkdir()
    for name in ("clean/b.wav", "clean/c.wav"):
        (val / name).write_bytes(b"val " + name[-5:-4].encode())
    rows = {
        "train.json": ["a.wav", "b.wav", "gone.wav"],
        "val.json": ["lost.wav", "clean/b.wav", "clean/c.wav"],
    }
    train, val = (
        write(folder, name, "\n".join(json.dumps({"audio_filepath": each}) for each in names))
        for folder, (name, names) in zip((train, val), rows.items(), strict=True)
    )
    settings = {"tarred_audio_filepaths": str(tmp_path / "audio_0.tar")}
    manifest = read({"train": train, "val": val}, **settings)
    values = manifest.cells("audio_filepath", range(6))
    assert values == [row.values["audio_filepath"] for row in manifest.rows(range(6))]
    assert [file.read_bytes(Limits()) for file in values[:2]] == [b"tar a", b"tar b"]
    with pytest.raises(SampleError, match=r"no member 'gone\.wav'"):
        values[2].read_bytes(Limits())
    prefix = f"{folders[1]}/" if folders[1] else ""
    assert values[3:] == [f"{prefix}{name}" for name in rows["val.json"]]
    assert "3 rows name files of their own, not members of the tar files" in manifest.notes
    assert manifest.take([4]).rows([0])[0].values["audio_filepath"] == values[4]
    alone = read(val, **settings).rows([1])[0].values["audio_filepath"]
    assert isinstance(alone, SourceFile)  # one manifest is all tarred


def test_numbers_alone() -> None:
    manifest = manifest_of_range(3)
    assert [(row.key, row.values) for row in manifest.rows([2, 0])] == [
        ("2", {"index": 2}),
        ("0", {"index": 0}),
    ]


@given(data=st.data())
def test_take_and_rows_agree(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    manifest = read(write(tmp_path_factory.mktemp("m"), "m.csv", CSV))
    indices = np.array(data.draw(st.lists(st.integers(0, 2))), np.int64)
    taken = manifest.take(indices)
    assert taken.rows(range(len(taken))) == manifest.rows(indices)
    np.testing.assert_array_equal(taken.digests(["file", "age"]), manifest.digests(["file", "age"])[indices])
    for columns in (["file", "age"], ["age"], []):
        np.testing.assert_array_equal(manifest.digests(columns, indices), taken.digests(columns))


def test_digests_ignore_other_columns_and_order(tmp_path: Path) -> None:
    one = read(write(tmp_path, "1.csv", "file,label\na.wav,1\nb.wav,2\n"))
    two = read(write(tmp_path, "2.csv", "new,label,file\nx,2,b.wav\ny,1,a.wav\nz,3,c.wav\n"))
    np.testing.assert_array_equal(one.digests(["file", "label"]), two.digests(["label", "file"])[[1, 0]])


def test_only_wanted_columns_travel(tmp_path: Path) -> None:
    table = pa.table({"id": ["a", "b"], "note": ["long", "longer"], "dx": [[1], [2, 3]]})
    pq.write_table(table, tmp_path / "m.parquet")
    manifest = read_manifest(SourceSettings(manifest=str(tmp_path / "m.parquet"), key_column="id"))
    assert set(manifest.block([1]).columns) == {"id", "note", "dx"}
    for wanted in (["dx"], ["note"], []):
        block = manifest.block([1], wanted=wanted)
        assert list(block.columns) == wanted
        assert block.keys == ["b"]
        assert [set(row.values) for row in block.rows()] == [set(wanted)]
