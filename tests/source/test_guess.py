"""Guesses: what a first run without a config makes of real sets and of awkward columns."""

from __future__ import annotations

import json
import re
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.config.source import SourceSettings
from flatout.errors import ConfigError
from flatout.source.guess import Guess, guess_fields
from flatout.source.manifest import Manifest, read_manifest


def guess_of(manifest: Any) -> Guess:
    return guess_fields(
        manifest if isinstance(manifest, Manifest) else read_manifest(SourceSettings(manifest=manifest))
    )


def fields_of(guess: Guess) -> dict[str, dict[str, Any]]:
    return {name: {"kind": f.kind, **f.model_dump(exclude_defaults=True)} for name, f in guess.fields.items()}


def not_used(guess: Guess) -> dict[str, str]:
    """The reason and the way out for each column that is said to be passed over."""
    found = (re.fullmatch(r"column '(.+)' is not used: (.+)", note) for note in guess.notes)
    return {match[1]: match[2] for match in found if match}


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
    told = not_used(guess_of(str(data_dir / "seq_icu2012" / "outcomes.csv")))
    assert list(told) == ["Length_of_stay"], "the key has a note of the manifest"
    assert told["Length_of_stay"].endswith("set fields.Length_of_stay.kind: scalar to use it")


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
        "target": "label",
        "grade": "label",
        "weight_g": "scalar",
        "change": "scalar",
        "age": "scalar",
        "smoker": "label",
        "caption": "text",
    }
    assert guess.group_column == "patient_id"
    assert not_used(guess) == {
        "comment": "no value comes twice; set fields.comment.kind: text to use it",
        "duration": "by its name it describes the file; set fields.duration.kind: scalar to use it",
        "sample_rate": "by its name it describes the file; set fields.sample_rate.kind: scalar to use it",
        "md5": "by its name it describes the file; set fields.md5.kind: text to use it",
        "nothing": "empty in 40 of 40 rows; set fields.nothing.kind: scalar to use it",
    }


def test_a_column_without_a_name_in_the_heading_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text(",file,\n0,a.wav,N\n1,b.wav,N\n")
    guess = guess_of(str(tmp_path / "m.csv"))
    no_name = "the heading gives it no name, or just this"
    assert not_used(guess) == {
        "column_1": f"{no_name}; set fields.column_1.kind: scalar to use it",
        "column_3": f"{no_name}; set fields.column_3.kind: text to use it",
    }


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


@pytest.mark.parametrize("odd", ["0.05", " +2 ", "here", True, [1]])
def test_one_odd_cell_leaves_the_segments_of_the_others(tmp_path: Path, odd: Any) -> None:
    starts = [0.0, 2.0, odd, 1.5]
    rows = [{"audio_filepath": "a.wav", "offset": start, "duration": "1"} for start in starts]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (signal,) = guess_of(str(tmp_path / "m.jsonl")).fields.values()
    assert (signal.offset_column, signal.duration_column) == ("offset", "duration")


def test_offsets_that_are_no_numbers_are_told_to_cut_nothing(tmp_path: Path) -> None:
    guess = table(tmp_path, audio_filepath=["a.wav", "b.wav"], offset=["0,5", "0,7"])
    assert fields_of(guess) == {"audio": {"kind": "signal", "column": "audio_filepath"}}
    assert not_used(guess)["offset"].startswith("no cell of it is a number of seconds, so the recordings are")


def test_lists_of_unequal_length_are_fields_of_their_own(tmp_path: Path) -> None:
    columns = {"t": [[1, 2], [1]], "v": [[3, 4], [5]], "beats": [[1], [1, 2, 3]], "gap": [None, [1]]}
    pq.write_table(pa.table(columns), tmp_path / "m.parquet")
    guess = guess_of(str(tmp_path / "m.parquet"))
    assert {name: field.columns for name, field in guess.fields.items()} == {
        "sequence": ["t", "v"],
        "beats": ["beats"],
        "gap": ["gap"],
    }


@pytest.mark.parametrize("gap", [None, []])
@pytest.mark.parametrize("row", [3, 60])
def test_a_row_without_a_list_parts_no_channels(tmp_path: Path, gap: Any, row: int) -> None:
    x = [[float(n)] * (2 + n % 5) for n in range(100)]
    y = [gap if n == row else values for n, values in enumerate(x)]
    z = [[*values, 1.0] for values in x]
    columns = {
        name: pa.array(c, pa.list_(pa.float32())) for name, c in {"y": y, "z": z, "x": x, "w": y}.items()
    }
    pq.write_table(pa.table(columns), tmp_path / "m.parquet")
    guess = guess_of(str(tmp_path / "m.parquet"))
    assert {name: field.columns for name, field in guess.fields.items()} == {
        "sequence": ["y", "x", "w"],
        "z": ["z"],
    }


def test_columns_that_no_field_can_be_named_after(tmp_path: Path) -> None:
    num = 40
    guess = table(
        tmp_path,
        **{
            "file name": [f"{i}.wav" for i in range(num)],
            "2d image": [f"{i}.png" for i in range(num)],
            "Age (years)": [20 + i % 12 for i in range(num)],
            "Age [years]": [i + 0.25 for i in range(num)],
            "Age_years": [i + 0.5 for i in range(num)],
            "flatout": ["ab"[i % 2] for i in range(num)],
            "年": [i + 0.75 for i in range(num)],
            "free text": [f"text {i}" for i in range(num)],
            "any remark": [f"words {i}" for i in range(num)],
        },
    )
    assert fields_of(guess) == {
        "signal": {"kind": "signal", "column": "file name"},
        "column_2d_image": {"kind": "image", "column": "2d image"},
        "Age_years_2": {"kind": "label", "column": "Age (years)"},
        "Age_years_3": {"kind": "scalar", "column": "Age [years]"},
        "Age_years": {"kind": "scalar"},
        "column_flatout": {"kind": "label", "column": "flatout"},
        "scalar": {"kind": "scalar", "column": "年"},
        "free_text": {"kind": "text", "column": "free text"},
    }
    assert "field 'scalar': scalar from column '年', whose name no field can have" in guess.notes
    assert guess.told["field", "Age_years_2"] == (
        "field 'Age_years_2': label from column 'Age (years)' (12 different numbers; set "
        "fields.Age_years_2.kind: scalar if they are quantities), whose name no field can have"
    )
    setting = 'fields.any_remark: {kind: text, column: "any remark"}'
    assert not_used(guess) == {"any remark": f"no value comes twice; set {setting} to use it"}


def test_list_columns_that_no_field_can_be_named_after(tmp_path: Path) -> None:
    pq.write_table(pa.table({"beats (s)": [[1.0, 2.0], [3.0]]}), tmp_path / "m.parquet")
    guess = guess_of(str(tmp_path / "m.parquet"))
    assert fields_of(guess) == {"beats_s": {"kind": "sequence", "columns": ["beats (s)"]}}


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (
            {"id": ["a", "b"], "comment": ["so", "so far"]},
            ["'comment' is not used: no value", "key: column 'id'"],
        ),
        ({"id": ["a", "b"]}, ["key: column 'id'"]),
        ({"age": [*range(60), "abc"]}, ["'age' is not used: no value", "'age' has mixed or nested values"]),
        ({"scan": ["0.mha", "1.mha"]}, [r"'scan' is not used: it holds paths, but nothing decodes '\.mha'"]),
        ({f"c{n}": [f"{n}", f"{n}x"] for n in range(30)}, ["'c19' is not used", r"  and \d+ more"]),
    ],
)
def test_no_field_at_all_is_refused_with_every_reason(
    tmp_path: Path, columns: dict[str, list[Any]], told: list[str]
) -> None:
    (tmp_path / "0.mha").touch()
    guess = table(tmp_path, **columns)
    manifest = read_manifest(SourceSettings(manifest=str(tmp_path / "m.jsonl")))
    assert guess.fields == {}
    for reason in (r"^no column of m\.jsonl gives a field", *told):
        with pytest.raises(ConfigError, match=reason):
            guess.check_any(manifest)


def test_files_that_nothing_decodes_are_said(tmp_path: Path) -> None:
    (tmp_path / "0.mha").write_text("")
    guess = table(tmp_path, scan=["0.mha", "1.mha"])
    assert guess.fields == {}
    assert not_used(guess)["scan"].startswith("it holds paths, but nothing decodes '.mha'; set a transform")


@pytest.mark.parametrize("name", ["split", "Subset", "partition"])
def test_the_split_is_not_a_field(tmp_path: Path, name: str) -> None:
    guess = table(tmp_path, file=["a.wav", "b.wav"], **{name: ["train", "test"]})
    assert list(guess.fields) == ["signal"]
    assert guess.split_column == name


@pytest.mark.parametrize("name", ["label", "Class", "target", "tumour_class", "patient_outcome"])
@pytest.mark.parametrize(
    "values", [["a", "b"], ["a", "a"], ["a"], [0, 1, 2], [5], [-1, 1], [1.0, 0.0, 2.0], [True], ["a", None]]
)
def test_a_column_called_label_is_one_in_the_smallest_set(tmp_path: Path, name: str, values: list[Any]) -> None:
    guess = table(tmp_path, file=[f"{i}.wav" for i in range(len(values))], **{name: values})
    assert fields_of(guess)[name] == {"kind": "label"}


def test_a_column_called_label_that_cannot_be_classes(tmp_path: Path) -> None:
    sentences = [f"{i} " + "no class has a name as long as this sentence has, by far" * 2 for i in range(3)]
    guess = table(tmp_path, file=["0.wav", "1.wav", "2.wav"], label=sentences, target=[0.5, 1.0, 2.0])
    assert {name: field.kind for name, field in guess.fields.items()} == {
        "signal": "signal",
        "target": "scalar",
    }
    assert not_used(guess)["label"] == (
        "texts of more than 60 characters; set fields.label.kind: text to use it"
    )
    again = table(tmp_path, file=["0.wav", "1.wav", "2.wav"], label=[sentences[0], *sentences[:2]])
    assert again.fields["label"].kind == "label", "long names that come again are classes"


def test_many_whole_numbers_may_be_quantities(tmp_path: Path) -> None:
    ages = [20 + row % 11 for row in range(60)]
    guess = table(tmp_path, age=ages, score=[row % 10 for row in range(60)])
    assert [section.kind for section in guess.fields.values()] == ["label", "label"]
    told = "(11 different numbers; set fields.age.kind: scalar if they are quantities)"
    assert f"field 'age': label from column 'age' {told}" in guess.notes
    assert "field 'score': label from column 'score'" in guess.notes


def test_many_numbers_called_label_are_doubted(tmp_path: Path) -> None:
    few = table(tmp_path, target=list(range(40)))
    assert few.fields["target"].kind == "label"
    assert (
        "field 'target': label from column 'target' (40 different numbers; set fields.target.kind: scalar if"
        in few.notes[0]
    )
    many = table(tmp_path, target=list(range(1001)))
    assert many.fields["target"].kind == "scalar"
    assert "(1,001 different values are many for classes)" in many.notes[0]


@pytest.mark.parametrize(
    ("num_rows", "num_values", "is_label"),
    [(3, 2, True), (33, 32, True), (34, 33, False), (100, 50, True), (100, 51, False), (3000, 1001, False)],
)
def test_texts_that_come_again_are_labels(
    tmp_path: Path, num_rows: int, num_values: int, is_label: bool
) -> None:
    guess = table(tmp_path, cls=[f"v{i % num_values}" for i in range(num_rows)])
    assert ("cls" in guess.fields) == is_label
    if not is_label:
        assert not_used(guess)["cls"] == (
            f"{num_values:,} different values are many for classes; set fields.cls.kind: label to use it"
        )


def test_one_odd_row_adds_no_field(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"file": f"{i}.wav", "label": "ab"[i % 2], "half": i // 4} for i in range(8)]
    for row in rows[:4]:
        row["half"] = None
    rows.append({"image": "a.png", "class": "x", "age": 3, "label": "a", "half": 1, "note": " "})
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    guess = guess_of(str(tmp_path / "m.jsonl"))
    assert list(guess.fields) == ["signal", "label", "half"]
    told = not_used(guess)
    assert told["image"] == "empty in 8 of 9 rows; set fields.image.kind: image to use it"
    assert told["class"] == "empty in 8 of 9 rows; set fields.class.kind: label to use it"
    assert told["age"] == "empty in 8 of 9 rows; set fields.age.kind: label to use it"
    assert told["note"].startswith("empty in 9 of 9 rows")


def test_lists_that_are_mostly_missing_are_no_field(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": [[1], [2], [3]], "odd": [None, None, [1]]}), tmp_path / "m.parquet")
    guess = guess_of(str(tmp_path / "m.parquet"))
    assert list(guess.fields) == ["t"]
    assert not_used(guess) == {
        "odd": "most of its first lists are missing; set fields.odd.kind: sequence to use it"
    }


def test_a_second_group_and_ids_that_are_no_key_are_said(tmp_path: Path) -> None:
    num = 20
    guess = table(
        tmp_path,
        id=list(range(num)),
        name=["same"] * num,
        patient=[f"p{i}" for i in range(num)],
        speaker=[f"s{i}" for i in range(num)],
        subject=[i + 0.5 for i in range(num)],
    )
    assert guess.group_column == "patient"
    assert not_used(guess) == {
        "name": "its name is that of an id; set fields.name.kind: text to use it",
        "speaker": "splits keep each 'patient' together already; set splits.group: speaker to use it",
        "subject": "splits keep each 'patient' together already; set splits.group: subject to use it",
    }


NAMES = ["file", "image_mask", "label", "cls", "id", "name", "patient", "subject", "split", "set", "offset"]
NAMES += ["duration", "md5", "text", "age", "Length_of_stay", "x"]
CELLS = st.none() | st.sampled_from(["", "a.wav", "b.png", "train", "c"]) | st.integers(-2, 3) | st.floats()


@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data(), st.lists(st.sampled_from(NAMES), min_size=1, unique=True), st.integers(1, 6))
def test_every_column_is_said(tmp_path: Path, data: st.DataObject, names: list[str], num_rows: int) -> None:
    cells = st.lists(CELLS, min_size=num_rows, max_size=num_rows)
    columns = {name: data.draw(cells) for name in names}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    manifest = read_manifest(SourceSettings(manifest=str(tmp_path / "m.jsonl")))
    notes = [*manifest.notes, *guess_fields(manifest).notes]
    told = [note for note in notes if "kept as text" not in note and "see base_path" not in note]
    assert [name for name in names if not any(f"'{name}'" in note for note in told)] == []


def test_a_note_offers_no_kind_that_fails(tmp_path: Path) -> None:
    days = [date(2024, 1, number + 1) for number in range(9)]
    times = [datetime(2024, 1, 1, number) for number in range(9)]
    lengths = [timedelta(seconds=number) for number in range(9)]
    columns = {"t": times, "day": days, "length": lengths, "start": times, "x": [n / 4 for n in range(9)]}
    pq.write_table(pa.table(columns), tmp_path / "m.parquet")
    guess = guess_of(str(tmp_path / "m.parquet"))
    offered = {name: reason.rpartition("; ")[2] for name, reason in not_used(guess).items()}
    names = ("t", "day", "length", "start")
    assert offered == {name: f"set fields.{name}.kind: text to use it" for name in names}
