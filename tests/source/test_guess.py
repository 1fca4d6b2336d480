"""Guesses: what a first run without a config makes of real sets and of awkward columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flatout.config.source import SourceSettings
from flatout.source.guess import Guess, guess_fields
from flatout.source.manifest import Manifest, read_manifest


def guess_of(manifest: Any) -> Guess:
    return guess_fields(
        manifest if isinstance(manifest, Manifest) else read_manifest(SourceSettings(manifest=manifest))
    )


def fields_of(guess: Guess) -> dict[str, dict[str, Any]]:
    return {name: {"kind": f.kind, **f.model_dump(exclude_defaults=True)} for name, f in guess.fields.items()}


def table(tmp_path: Path, **columns: list[Any]) -> Guess:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return guess_of(str(tmp_path / "m.jsonl"))


def test_heart_sounds(data_dir: Path) -> None:
    guess = guess_of(str(data_dir / "heart_yaseen" / "labels.csv"))
    assert fields_of(guess) == {"signal": {"kind": "signal", "column": "file"}, "label": {"kind": "label"}}
    assert guess.group_column == "near_duplicate_group"
    assert guess.split_column is None


def test_heart_sounds_by_folder(data_dir: Path) -> None:
    guess = guess_of(str(data_dir / "heart_yaseen"))
    assert fields_of(guess) == {"signal": {"kind": "signal", "column": "file"}, "label": {"kind": "label"}}


def test_speech(data_dir: Path) -> None:
    folder = data_dir / "speech_fsdd"
    wanted = {
        "audio": {"kind": "signal", "column": "audio_filepath"},
        "text": {"kind": "text"},
        "label": {"kind": "label"},
    }
    one = guess_of(str(folder / "manifest_train.jsonl"))
    assert fields_of(one) == wanted
    assert one.group_column is None
    assert any("'speaker' has 4 values, too few" in note for note in one.notes)
    both = guess_of(
        {"train": str(folder / "manifest_train.jsonl"), "test": str(folder / "manifest_test.jsonl")}
    )
    assert fields_of(both) == wanted
    assert both.split_column == "split"
    assert fields_of(guess_of(str(folder))) == wanted


def test_hippocampus(data_dir: Path) -> None:
    guess = guess_of(str(data_dir / "mr_hippocampus"))
    assert fields_of(guess) == {"image": {"kind": "volume"}, "mask": {"kind": "mask", "of": "image"}}


def test_cardiac_mr(data_dir: Path) -> None:
    manifest = read_manifest(SourceSettings(manifest=str(data_dir / "cmr_seg_sunnybrook")))
    assert len(manifest) == 260
    assert all(
        row.values["image"].replace("images", "labels") == row.values["mask"]
        for row in manifest.rows(range(260))
    )
    assert fields_of(guess_of(manifest)) == {
        "image": {"kind": "image"},
        "mask": {"kind": "mask", "of": "image"},
    }


def test_strokes(data_dir: Path) -> None:
    wanted = {"sequence": {"kind": "sequence", "columns": ["dx", "dy", "pen_up"]}}
    assert fields_of(guess_of(str(data_dir / "seq_strokes_omniglot" / "valid.parquet"))) == wanted
    whole = guess_of(str(data_dir / "seq_strokes_omniglot"))
    assert fields_of(whole) == wanted
    assert whole.split_column == "split"


def test_a_dicom_series(data_dir: Path) -> None:
    assert fields_of(guess_of(str(data_dir / "dicom_series_torchio"))) == {
        "volume": {"kind": "volume", "column": "file"}
    }


def test_a_column_of_series(data_dir: Path) -> None:
    rows = pa.table({"id": ["a", "b"], "ct_series": ["dicom_series_torchio", "not_there"]})
    columns = pa.table(
        {n: c.cast(pa.large_string()) for n, c in zip(rows.column_names, rows.columns, strict=True)}
    )
    manifest = Manifest(columns, columns["id"].combine_chunks(), data_dir, ("ct_series",))
    assert fields_of(guess_of(manifest)) == {"ct_series": {"kind": "volume"}}


def test_icu_records(data_dir: Path) -> None:
    assert fields_of(guess_of(str(data_dir / "seq_icu2012"))) == {
        "sequence": {"kind": "sequence", "column": "file"}
    }
    outcomes = fields_of(guess_of(str(data_dir / "seq_icu2012" / "outcomes.csv")))
    assert outcomes["In-hospital_death"] == {"kind": "label"}
    assert outcomes["Survival"] == {"kind": "scalar"}
    assert "RecordID" not in outcomes


def test_masks_by_name(tmp_path: Path) -> None:
    guess = table(
        tmp_path, image_path=["a.png", "b.png"], label_path=["a_l.png", "b_l.png"], roi_mask=["c.png", "d.png"]
    )
    assert fields_of(guess) == {
        "image": {"kind": "image", "column": "image_path"},
        "label": {"kind": "mask", "of": "image", "column": "label_path"},
        "roi_mask": {"kind": "mask", "of": "image"},
    }


def test_a_lone_column_of_masks_is_an_image(tmp_path: Path) -> None:
    assert fields_of(table(tmp_path, mask=["a.png", "b.png"])) == {"mask": {"kind": "image"}}


def test_two_columns_that_would_have_one_name(tmp_path: Path) -> None:
    guess = table(tmp_path, file=["a.wav", "b.wav"], path=["a.flac", "b.flac"], filename=["a.ogg", "b.ogg"])
    assert list(guess.fields) == ["signal", "signal_2", "signal_3"]


def test_values_by_type_and_name(tmp_path: Path) -> None:
    num = 40
    guess = table(
        tmp_path,
        file=[f"{i}.wav" for i in range(num)],
        diagnosis=["ill" if i % 3 else "well" for i in range(num)],
        target=[f"unique {i}" for i in range(num)],
        grade=[i % 4 for i in range(num)],
        weight_g=[1000 + i for i in range(num)],
        change=[-1 if i % 2 else 1 for i in range(num)],
        age=[i + 0.5 for i in range(num)],
        smoker=[bool(i % 2) for i in range(num)],
        caption=[f"words {i}" for i in range(num)],
        comment=[f"words {i}" for i in range(num)],
        duration=[1.5] * num,
        sample_rate=[8000] * num,
        md5=["x"] * num,
        nothing=[None] * num,
        patient_id=[f"p{i // 2}" for i in range(num)],
    )
    kinds = {name: field.kind for name, field in guess.fields.items()}
    assert kinds == {
        "signal": "signal",
        "diagnosis": "label",
        "grade": "label",
        "weight_g": "scalar",
        "change": "scalar",
        "age": "scalar",
        "smoker": "label",
        "caption": "text",
    }
    assert guess.group_column == "patient_id"
    assert "column 'comment' is not used" in guess.notes


def test_a_group_that_leaks_is_not_used_but_said(tmp_path: Path) -> None:
    num = 60
    columns = {
        "file": [f"{i}.wav" for i in range(num)],
        "split": ["train" if i % 2 else "val" for i in range(num)],
    }
    leaking = table(tmp_path, **columns, subject=[f"s{i % 15}" for i in range(num)])
    assert leaking.group_column is None
    assert any(note.startswith("WARNING: values of 'subject'") for note in leaking.notes)
    fine = table(tmp_path, **columns, subject=[f"s{i % 30}" for i in range(num)])
    assert fine.group_column == "subject"


def test_segments_carry_their_offset(tmp_path: Path) -> None:
    guess = table(tmp_path, audio_filepath=["a.wav", "a.wav"], offset=[0.0, 2.0], duration=[2.0, 1.0])
    wanted = {
        "kind": "signal",
        "column": "audio_filepath",
        "offset_column": "offset",
        "duration_column": "duration",
    }
    assert fields_of(guess) == {"audio": wanted}
    whole = table(tmp_path, audio_filepath=["a.wav", "b.wav"], offset=[0.0, 0.0], duration=[2.0, 1.0])
    assert fields_of(whole) == {"audio": {"kind": "signal", "column": "audio_filepath"}}


def test_lists_of_unequal_length_are_fields_of_their_own(tmp_path: Path) -> None:
    columns = {"t": [[1, 2], [1]], "v": [[3, 4], [5]], "beats": [[1], [1, 2, 3]], "gap": [None, [1]]}
    pq.write_table(pa.table(columns), tmp_path / "m.parquet")
    guess = guess_of(str(tmp_path / "m.parquet"))
    assert {name: field.columns for name, field in guess.fields.items()} == {
        "sequence": ["t", "v"],
        "beats": ["beats"],
        "gap": ["gap"],
    }


def test_files_that_nothing_decodes_are_said(tmp_path: Path) -> None:
    (tmp_path / "0.mha").write_text("")
    guess = table(tmp_path, scan=["0.mha", "1.mha"])
    assert guess.fields == {}
    assert guess.notes == ["column 'scan' holds paths, but nothing decodes '.mha'"]


@pytest.mark.parametrize("name", ["split", "Subset", "partition"])
def test_the_split_is_not_a_field(tmp_path: Path, name: str) -> None:
    guess = table(tmp_path, file=["a.wav", "b.wav"], **{name: ["train", "test"]})
    assert list(guess.fields) == ["signal"]
    assert guess.split_column == name
