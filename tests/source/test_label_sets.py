"""Published sets of heart sounds, in small files of their own layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.config import Config, load_config
from flatout.errors import ConfigError, ManifestError
from flatout.source import read_manifest
from flatout.source.circor import one_patient
from flatout.source.label_sets import read_label_set
from flatout.source.splits import assign_splits


def write_physionet(root: Path, folders: dict[str, dict[str, int]]) -> Path:
    """Folders with names and classes; recordings are empty files, which nobody opens here."""
    for folder, classes in folders.items():
        place = root / folder
        place.mkdir(parents=True)
        (place / "REFERENCE.csv").write_text("".join(f"{name},{kind}\n" for name, kind in classes.items()))
        for name in classes:
            (place / f"{name}.wav").touch()
    return root


CIRCOR_HEADER = "Patient ID,Recording locations:,Age,Murmur,Murmur locations,Outcome,Campaign,Additional ID"


def write_circor(root: Path, lines: list[str], header: str = CIRCOR_HEADER) -> Path:
    (root / "training_data").mkdir(parents=True)
    (root / "training_data.csv").write_text("\n".join([header, *lines]) + "\n")
    for line in lines:
        patient, places = line.split(",")[:2]
        for place in places.split("+"):
            (root / "training_data" / f"{patient}_{place}.wav").touch()
            (root / "training_data" / f"{patient}_{place}.tsv").write_text("0\t0.1\t1\n")
    return root


def rows_of(name: Any, folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_label_set(name, folder).table.to_pylist()
    return rows


FOLDERS = {"training-a": {"a0001": 1, "a0002": -1}, "training-e": {"e00001": -1}}


def test_physionet(tmp_path: Path) -> None:
    root = write_physionet(tmp_path / "set", {**FOLDERS, "validation": {"a0001": 1}})
    part = read_label_set("physionet2016", root)
    assert part.table.to_pylist() == [
        {"file": "training-a/a0001.wav", "label": "abnormal", "patient": "training-a", "cycles": None},
        {"file": "training-a/a0002.wav", "label": "normal", "patient": "training-a", "cycles": None},
        {"file": "training-e/e00001.wav", "label": "normal", "patient": "training-e", "cycles": None},
    ]
    assert any("Online Appendix" in note for note in part.notes)


@pytest.mark.parametrize("below", ["", "training"])
def test_physionet_by_patient_and_quality(tmp_path: Path, below: str) -> None:
    root = tmp_path / "set"
    folders = {"training-a": {"a0001": 1, "a0002": -1, "a0003": 1}, "training-b": {"b0001": 1}}
    write_physionet(root / below, folders)
    (root / below / "training-a" / "REFERENCE-SQI.csv").write_text("a0001,1,1\na0002,-1,0\na0003,1,1\n")
    (root / "annotations").mkdir()
    (root / "annotations" / "Online Appendix_training set.csv").write_text(
        "Challenge record name,Database,Subject ID,Diagnosis\n"
        "a0001,training-a,7,MVP\na0002,training-a,8,Normal\na0003,training-a,7,MVP\nb0001,training-b,7,CAD\n",
        encoding="latin-1",
    )
    part = read_label_set("physionet2016", root)
    names = [(Path(row["file"]).stem, row["patient"]) for row in part.table.to_pylist()]
    assert names == [("a0001", "training-a/7"), ("a0003", "training-a/7"), ("b0001", "training-b/7")]
    assert part.notes[1:] == ("left out 1 recordings of unsure quality (REFERENCE-SQI.csv)",)


def test_one_folder_of_physionet(tmp_path: Path) -> None:
    write_physionet(tmp_path, {"training-b": {"b0001": 1}})
    assert rows_of("physionet2016", tmp_path / "training-b")[0]["file"] == "b0001.wav"


def test_circor(tmp_path: Path) -> None:
    lines = ["2530,AV+MV,Child,Present,MV,Abnormal,CC2015,", "9979,PV,Child,Absent,nan,Normal,CC2015,"]
    root = write_circor(tmp_path / "set", [*lines, "13,Phc,,Unknown"])
    data = root / "training_data"
    (data / "2530_AV.wav").rename(data / "2530_AV_1.wav")
    (data / "2530_AV_2.wav").touch()
    (data / "2530_AV.tsv").rename(data / "2530_AV_1.tsv")
    rows = rows_of("circor_murmur", root)
    assert [(row["file"], row["label"], row["patient"]) for row in rows] == [
        ("training_data/2530_AV_1.wav", "Present", "2530"),
        ("training_data/2530_AV_2.wav", "Present", "2530"),
        ("training_data/2530_MV.wav", "Present", "2530"),
        ("training_data/9979_PV.wav", "Absent", "9979"),
        ("training_data/13_Phc.wav", "Unknown", "13"),
    ]
    assert [row["cycles"] for row in rows][:3] == [
        "training_data/2530_AV_1.tsv", None, "training_data/2530_MV.tsv",
    ]  # fmt: skip


def test_two_visits_of_one_patient_stay_together(tmp_path: Path) -> None:
    lines = [f"{n},AV,,Absent,,,,{n + 1000}.0" for n in range(40)]
    lines += [f"{n + 1000},MV,,Absent,,,," for n in range(40)]
    root = write_circor(tmp_path / "set", lines)
    config = load_config({"task": "heart_sound", "manifest": str(root), "label_set": "circor_murmur"})
    manifest = read_manifest(config)
    splits = assign_splits(manifest.keys, config.splits, groups=manifest.table[config.splits.group])
    assert set(splits) == {"train", "val", "test"}
    assert list(splits[:40]) == list(splits[40:])


PAIRS = st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["", *"abcdef"])), max_size=12)


@given(PAIRS)
def test_names_of_one_patient(pairs: list[tuple[str, str]]) -> None:
    """Against sets that grow together."""
    sets = {name: {name} for pair in pairs for name in pair if name}
    for one, other in pairs:
        if other:
            joined = sets[one] | sets[other]
            sets.update(dict.fromkeys(joined, joined))
    assert one_patient(pairs) == {name: min(whole) for name, whole in sets.items()}


def config_of(root: Path, name: str, **settings: Any) -> Config:
    return load_config({"task": "heart_sound", "manifest": str(root), "label_set": name, **settings})


def test_the_config_knows_its_columns_and_classes(tmp_path: Path) -> None:
    config = config_of(write_physionet(tmp_path, FOLDERS), "physionet2016")
    assert config.splits.group == "patient"
    assert config.fields["label"].classes == ["normal", "abnormal"]  # type: ignore[union-attr]
    assert read_manifest(config).keys.to_pylist()[0] == "training-a/a0001.wav"
    other = config_of(tmp_path, "circor_murmur", fields={"signal": {"rate": 2000}})
    assert other.fields["signal"].cycle_column == "cycles"  # type: ignore[union-attr]
    assert other.fields["signal"].rate == 2000  # type: ignore[union-attr]
    own = config_of(tmp_path, "circor_murmur", splits={"group": "file"}, fields={"x": {"kind": "signal"}})
    assert (own.splits.group, list(own.fields)) == ("file", ["x"])


def refused(match: str, name: Any, folder: Path) -> None:
    with pytest.raises(ManifestError, match=match):
        read_label_set(name, folder)


def test_wrong_physionet(tmp_path: Path) -> None:
    refused("is not a folder", "physionet2016", tmp_path / "nowhere")
    refused("no folders training-a", "physionet2016", tmp_path)
    (tmp_path / "a" / "training-a").mkdir(parents=True)
    refused(r"training-a/REFERENCE\.csv: No such file.*published set", "physionet2016", tmp_path / "a")
    root = write_physionet(tmp_path / "b", {"training-a": {"a0001": 2}})
    refused(r"REFERENCE\.csv, line 1: unknown class '2'; wanted one of -1, 1", "physionet2016", root)
    (root / "training-a" / "REFERENCE.csv").write_text("\na0001,1\na0009,1\n")
    refused(r"line 3: there is no .*a0009\.wav", "physionet2016", root)
    (root / "training-a" / "REFERENCE.csv").write_text("a0001\n")
    refused(r"line 1: got 'a0001', wanted a name and a class", "physionet2016", root)
    (root / "training-a" / "REFERENCE.csv").write_text("a0001,1\n")
    (root / "training-a" / "REFERENCE-SQI.csv").write_text("a0001,1,0\n")
    refused("no recording .* usable quality", "physionet2016", root)


def test_wrong_circor(tmp_path: Path) -> None:
    refused(r"training_data\.csv: No such file", "circor_murmur", tmp_path)
    root = write_circor(tmp_path / "a", ["1,AV,Child,Maybe,,,,"])
    refused(r"line 2: unknown class 'Maybe'; wanted one of Absent, Present, Unknown", "circor_murmur", root)
    header = CIRCOR_HEADER.replace("Murmur,", "Mumur,")
    root = write_circor(tmp_path / "b", ["1,AV,Child,Absent,,,,"], header)
    refused("no column 'Murmur'; it has: Patient ID, ", "circor_murmur", root)
    root = write_circor(tmp_path / "c", ["1,AV+PV,Child,Absent,,,,"])
    (root / "training_data" / "1_PV.wav").unlink()
    refused(r"line 2: patient 1 .* place 'PV'.*training_data/1_PV\.wav", "circor_murmur", root)
    root = write_circor(tmp_path / "d", [])
    refused("has no patients", "circor_murmur", root)


def test_wrong_settings(tmp_path: Path) -> None:
    root = write_physionet(tmp_path / "set", FOLDERS)
    with pytest.raises(ManifestError, match="leave base_path"):
        read_manifest(config_of(root, "physionet2016", base_path=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"label_set.*circor_murmur"):
        config_of(root, "circor")
