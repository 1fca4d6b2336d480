"""Given fields over guessed ones: what is merged, replaced, left out, and said."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flatout.config import load_config
from flatout.errors import ConfigError
from flatout.source import Guess, Manifest, read_manifest, settle_fields

COLUMNS = ("image_path", "mask_path", "diagnosis", "age", "note")


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Scans with masks, a class, a number and a remark that is mostly missing."""
    with open(tmp_path / "m.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for number in range(12):
            note = "seen" if number == 0 else ""
            writer.writerow([f"i{number}.nii", f"m{number}.nii", "ab"[number % 2], 30.5 + number, note])
            for name in "im":
                (tmp_path / f"{name}{number}.nii").touch()
    return tmp_path / "m.csv"


def settled(
    manifest: Path, fields: Any = None, sets: list[str] | None = None, **more: Any
) -> tuple[Manifest, Guess]:
    given = {} if fields is None else {"fields": fields}
    config = load_config({"manifest": str(manifest), **given, **more}, sets=sets or (), environ={})
    return settle_fields(config, read_manifest(config))


def fields_of(manifest: Path, fields: Any = None, sets: list[str] | None = None, **more: Any) -> dict[str, Any]:
    _, guess = settled(manifest, fields, sets, **more)
    return {name: {"kind": f.kind, **f.model_dump(exclude_defaults=True)} for name, f in guess.fields.items()}


GUESSED = {
    "image": {"kind": "volume", "column": "image_path"},
    "mask": {"kind": "mask", "of": "image", "column": "mask_path"},
    "diagnosis": {"kind": "label"},
    "age": {"kind": "scalar"},
}


def test_without_fields_all_are_guessed(manifest: Path) -> None:
    assert fields_of(manifest) == fields_of(manifest, {}) == GUESSED


def test_settings_without_a_kind_are_merged_over_the_guess(manifest: Path) -> None:
    image = {"spacing": [1, 1, 2], "encoding": "float16"}
    wanted = {**GUESSED, "image": {**GUESSED["image"], "spacing": (1, 1, 2), "encoding": "float16"}}
    assert fields_of(manifest, {"image": image}) == wanted
    assert fields_of(manifest, {"image": {"kind": "auto", **image}}) == wanted
    assert list(fields_of(manifest, {"age": {}, "image": image})) == list(GUESSED)


def test_a_field_may_be_named_by_its_column_or_renamed(manifest: Path) -> None:
    ct = {**GUESSED["image"], "window": (0.0, 1.0)}
    mask = {**GUESSED["mask"], "of": "ct"}
    rest = {name: GUESSED[name] for name in ("diagnosis", "age")}
    found = fields_of(manifest, {"ct": {"column": "image_path", "window": [0, 1]}})
    assert found == {"ct": ct, "mask": mask, **rest}
    assert next(iter(found)) == "ct"
    found = fields_of(manifest, {"image_path": {"window": [0, 1]}})
    assert found["image_path"] == {"kind": "volume", "window": (0.0, 1.0)}
    assert found["mask"]["of"] == "image_path"
    assert "image" not in found


def test_another_kind_takes_the_column_of_the_guess_and_nothing_else(manifest: Path) -> None:
    found = fields_of(manifest, {"mask": {"kind": "volume"}}, guess_fields=True)
    assert found == {**GUESSED, "mask": {"kind": "volume", "column": "mask_path"}}
    assert fields_of(manifest, {"age": {"kind": "text"}}, guess_fields=True)["age"] == {"kind": "text"}


def test_null_leaves_a_field_out(manifest: Path) -> None:
    for left_out in ({"age": None}, {"age": {"kind": "none"}}):
        found = fields_of(manifest, left_out)
        assert found == {name: field for name, field in GUESSED.items() if name != "age"}
    _, guess = settled(manifest, {"mask_path": None, "typo": None})
    assert list(guess.fields) == ["image", "diagnosis", "age"]
    assert "field 'mask_path': left out, as set" in guess.notes
    assert "field 'typo': null, but nothing of that name is guessed" in guess.notes


def test_a_mask_without_its_image_belongs_to_the_next(tmp_path: Path, manifest: Path) -> None:
    text = manifest.read_text().replace("age,", "scan_path,").replace("30.5", "i0.nii")
    lines = text.splitlines()
    rows = [line.split(",") for line in lines[1:]]
    table = "\n".join([lines[0], *(",".join([*row[:3], row[0], row[4]]) for row in rows)])
    manifest.write_text(table + "\n")
    found = fields_of(manifest, {"image": None})
    assert found["scan"]["kind"] == "volume"
    assert found["mask"] == {"kind": "mask", "column": "mask_path"}


def test_every_field_with_its_kind_is_a_list_of_all(manifest: Path) -> None:
    given = {"ct": {"kind": "volume", "column": "image_path"}}
    assert fields_of(manifest, given) == given
    assert fields_of(manifest, given, guess_fields=False) == given
    assert fields_of(manifest, {**given, "age": None}, guess_fields=False) == given
    merged = fields_of(manifest, given, guess_fields=True)
    assert list(merged) == ["ct", "mask", "diagnosis", "age"]


def test_a_set_beside_a_bare_manifest_corrects_the_guess(manifest: Path) -> None:
    found = fields_of(manifest, sets=["fields.diagnosis.kind=text", "fields.age=null"])
    wanted = {name: field for name, field in GUESSED.items() if name != "age"}
    assert found == {**wanted, "diagnosis": {"kind": "text"}}
    assert fields_of(manifest, sets=["fields.age.kind=scalar", "guess_fields=false"]) == {
        "age": {"kind": "scalar"}
    }
    # Over a list of all it stays one.
    listed = {"age": {"kind": "scalar"}}
    assert fields_of(manifest, listed, ["fields.age.dtype=float64"]) == {
        "age": {"kind": "scalar", "dtype": "float64"}
    }


def test_what_is_said(manifest: Path) -> None:
    _, plain = settled(manifest)
    assert any("column 'note' is not used" in note for note in plain.notes)
    _, guess = settled(manifest, {"image": {"spacing": [1, 1, 1]}, "note": {"kind": "text"}})
    assert "field 'image': volume from column 'image_path', as set" in guess.notes
    assert "field 'note': text from column 'note', as set" in guess.notes
    assert not any("'note' is not used" in note for note in guess.notes)
    assert sum("field 'image'" in note for note in guess.notes) == 1
    assert any(note.startswith("field 'age': scalar") for note in guess.notes)
    _, guess = settled(manifest, {"age": {"kind": "label", "column": "diagnosis"}}, guess_fields=True)
    assert list(guess.fields) == ["image", "mask", "age"]
    assert any("column 'age' is not used: 'age' is another field" in note for note in guess.notes)


@pytest.mark.parametrize(
    ("fields", "more", "told"),
    [
        ({"note": {"dtype": "int8"}}, {}, r"'note' has no kind.*column 'note' is not used.*fields\.note\.kind"),
        ({"nothing": {}}, {}, r"'nothing' has no kind.*guessed fields: image, mask, diagnosis, age"),
        ({"age": {"size": [1, 1]}}, {}, r"\(scalar, guessed, from column 'age'\).*has no 'size'"),
        ({"image": {"size": "big"}}, {}, r"'fields\.image\.size' is 'big'"),
        ({"age": {}}, {"guess_fields": False}, r"'age' has no kind, and guess_fields is false"),
        ({"age": None}, {"guess_fields": False}, "a sample would be empty"),
    ],
)
def test_what_cannot_be_is_refused(manifest: Path, fields: Any, more: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        settled(manifest, fields, **more)


def test_a_column_that_is_not_there_is_named(manifest: Path) -> None:
    with pytest.raises(ConfigError, match="field 'weight' wants column 'weight'; there are: image_path"):
        settled(manifest, {"weight": {"kind": "scalar"}}, guess_fields=True)


def test_keys_are_the_same_with_and_without_settings(manifest: Path) -> None:
    plain, _ = settled(manifest)
    for fields in ({"age": {"dtype": "float64"}}, {"mask": {"kind": "volume"}, "age": {}}, {"image": None}):
        assert settled(manifest, fields)[0].keys.equals(plain.keys)


def test_paths_that_are_read_as_text_are_no_files(manifest: Path) -> None:
    found, _ = settled(manifest, {"mask": {"kind": "text"}}, guess_fields=True)
    assert found.path_columns == ("image_path",)
    both = {"mask": {"kind": "text"}, "again": {"kind": "mask", "column": "mask_path"}}
    found, guess = settled(manifest, both, guess_fields=True)
    assert found.path_columns == ("image_path", "mask_path")
    assert {"mask", "again"} <= guess.fields.keys()


def test_lists_are_replaced_by_what_reads_one_of_them(tmp_path: Path) -> None:
    lists = {name: [[1.0, 2.0], [3.0]] for name in ("dx", "dy", "pen")}
    pq.write_table(pa.table({"id": ["a", "b"], **lists}), tmp_path / "m.parquet")
    assert fields_of(tmp_path / "m.parquet", {"sequence": {"scale": 2.0}}) == {
        "sequence": {"kind": "sequence", "columns": ["dx", "dy", "pen"], "scale": 2.0}
    }
    stroke = {"kind": "sequence", "columns": ["dx", "dy"]}
    _, guess = settled(tmp_path / "m.parquet", {"stroke": stroke}, guess_fields=True)
    assert list(guess.fields) == ["stroke"]
    assert any("column 'pen' is not used" in note for note in guess.notes)


def test_segments_stay_guessed(tmp_path: Path) -> None:
    rows = [{"audio_filepath": f"{n % 2}.wav", "offset": n / 2, "duration": 1.0, "text": "x"} for n in range(6)]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = fields_of(tmp_path / "m.jsonl", {"audio": {"rate": 8000}})
    assert found["audio"] == {
        "kind": "signal",
        "column": "audio_filepath",
        "rate": 8000,
        "offset_column": "offset",
        "duration_column": "duration",
    }
    assert found["text"] == {"kind": "text"}


def test_what_a_transform_returns_is_stored_as_said(manifest: Path) -> None:
    more = {"transform": "json:loads"}
    assert fields_of(manifest, {"spectrum": {"encoding": "float16"}}, **more) == {
        "spectrum": {"kind": "transform", "encoding": "float16"}
    }
    found, _ = settled(manifest, {"spectrum": {"encoding": "float16"}}, **more)
    assert found.path_columns == ("image_path", "mask_path")
    with pytest.raises(ConfigError, match="not returning it"):
        settled(manifest, {"spectrum": None}, **more)
    with pytest.raises(ConfigError, match="has no 'spacing'"):
        settled(manifest, {"spectrum": {"spacing": [1, 1, 1]}}, **more)


def test_settings_that_a_store_keeps_give_the_same_fields(manifest: Path) -> None:
    """They are kept in full, defaults too; those must not pass for settings that somebody gave."""
    fields = {"image": {"spacing": [1, 1, 2]}, "mask": {"kind": "mask", "distance": "signed"}, "age": None}
    config = load_config({"manifest": str(manifest), "fields": fields}, environ={})
    again = load_config(json.loads(config.model_dump_json()), environ={})
    found = [settle_fields(c, read_manifest(c))[1].fields for c in (config, again)]
    assert found[0] == found[1]
    assert found[0]["mask"].of == "image"


def test_numbers_that_look_like_paths_stay_values(tmp_path: Path) -> None:
    """A scalar that is given for a column of numbers, beside guessed ones."""
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "m.csv").write_text("file,score\n" + "a.npy,0.5\n" * 3)
    assert fields_of(tmp_path / "m.csv", {"score": {"kind": "scalar", "dtype": "float64"}, "array": {}}) == {
        "array": {"kind": "array", "column": "file"},
        "score": {"kind": "scalar", "dtype": "float64"},
    }


def test_a_field_with_a_cleaned_name_is_changed_by_name_or_column(tmp_path: Path) -> None:
    rows = "".join(f"a{n},{n}.5,{'ab'[n % 2]}\n" for n in range(12))
    (tmp_path / "m.csv").write_text(f"id,Age (years),label\n{rows}")
    age = {"kind": "scalar", "column": "Age (years)"}
    label = {"label": {"kind": "label"}}
    path = tmp_path / "m.csv"
    assert fields_of(path) == {"Age_years": age, **label}
    assert fields_of(path, {"Age_years": {"dtype": "float64"}}) == {
        "Age_years": {**age, "dtype": "float64"},
        **label,
    }
    assert fields_of(path, {"old": {"column": "Age (years)"}}) == {"old": age, **label}
    assert fields_of(path, {"Age (years)": None}) == fields_of(path, {"Age_years": None}) == label


def test_given_fields_beside_an_empty_guess(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("id,comment\n" + "".join(f"a{n},words {n}\n" for n in range(9)))
    comment = {"comment": {"kind": "text"}}
    assert fields_of(tmp_path / "m.csv", comment, guess_fields=True) == comment


@pytest.mark.parametrize(
    ("settings", "group"),
    [
        ({"fields": {"x": {"kind": "signal", "column": "file"}}}, "speaker"),
        ({"transform": "json:loads"}, "speaker"),
        ({"fields": {"x": {"kind": "signal", "column": "file"}, "speaker": {"kind": "label"}}}, None),
        ({"fields": {"x": {"kind": "signal", "column": "file"}}, "splits": {"guess": False}}, None),
        ({"fields": {"x": {"kind": "signal", "column": "file"}}, "splits": {"group": "room"}}, "room"),
        (
            {
                "fields": {"x": {"kind": "signal", "column": "file"}, "speaker": {"kind": "label"}},
                "splits": {"group": "speaker"},
            },
            "speaker",
        ),
    ],
)
def test_patients_stay_together_whether_or_not_fields_are_given(
    tmp_path: Path, settings: dict[str, Any], group: str | None
) -> None:
    """Unless whom they are told apart by is what is learned."""
    rows = [f"{number}.wav,p{number // 2},r{number % 11}" for number in range(60)]
    (tmp_path / "m.csv").write_text("\n".join(["file,speaker,room", *rows]))
    _, guess = settled(tmp_path / "m.csv", **settings)
    assert guess.group_column in (group, None)
    config = load_config({"manifest": str(tmp_path / "m.csv"), **settings}, environ={})
    assert (config.splits.group or guess.group_column) == group
    assert any("together (30 groups)" in note for note in guess.notes) == (group == "speaker")


def test_a_leak_is_told_where_fields_are_given(tmp_path: Path) -> None:
    rows = [f"{number}.wav,p{number // 4},{'train' if number % 2 else 'val'}" for number in range(60)]
    (tmp_path / "m.csv").write_text("\n".join(["file,patient,split", *rows]))
    _, guess = settled(tmp_path / "m.csv", fields={"x": {"kind": "signal", "column": "file"}})
    assert any("WARNING: values of 'patient' stand in more than one split" in note for note in guess.notes)


TWICE = [f"{number}.wav,{number % 3}" for number in range(12)] * 2


@pytest.mark.parametrize(
    "fields", [None, {"x": {"kind": "signal", "column": "file"}}], ids=["guessed", "given"]
)
@pytest.mark.parametrize(
    ("header", "rows", "more", "group", "told"),
    [
        ("file,kind", TWICE, {}, "file", "splits keep each 'file' together (12 groups)"),
        ("file,kind", TWICE[:12], {}, None, None),
        ("file,kind,id", [f"{r},{n}" for n, r in enumerate(TWICE)], {}, "file", "together (12 groups)"),
        (
            "file,kind",
            TWICE[:9] * 2,
            {},
            None,
            "several rows have the same 'file', but 9 are too few to divide",
        ),
        ("file,kind,patient", [f"{r},{n % 11}" for n, r in enumerate(TWICE)], {}, "patient", "each 'patient'"),
        (
            "file,kind",
            TWICE,
            {"splits": {"stratify": "kind"}},
            None,
            "splits.stratify divides them: samples may leak",
        ),
        (
            "file,kind",
            TWICE,
            {"splits": {"guess": False}},
            None,
            "the splits were made without it: samples may leak",
        ),
        ("file,kind", [*TWICE[:12], ",1", ",2"], {}, None, None),  # two rows have no file
        ("noise,file", [f"{n % 12}.wav,c{n}.wav" for n in range(24)], {}, None, None),  # a file for each row
        ("file,mask", [f"{n // 2}.png,m{n}.png" for n in range(24)], {}, "file", "together (12 groups)"),
        ("file,t2", [f"{n // 2}.wav,t{n // 2}.wav" for n in range(24)], {}, "file", "together (12 groups)"),
        (
            "file,kind,split",
            [f"{row},{'train' if number < 12 else 'val'}" for number, row in enumerate(TWICE)],
            {},
            None,
            "WARNING: rows of one 'file' stand in more than one split",
        ),
    ],
)
def test_rows_of_one_file_stay_together(
    tmp_path: Path,
    fields: Any,
    header: str,
    rows: list[str],
    more: dict[str, Any],
    group: str | None,
    told: str | None,
) -> None:
    """Pieces of one recording, or a row that stands twice, in train and in val: a leak."""
    (tmp_path / "m.csv").write_text("\n".join([header, *rows]))
    _, guess = settled(tmp_path / "m.csv", fields, **more)
    assert guess.group_column == group
    about = [note for note in guess.notes if "splits" in note or "WARNING" in note or "too few" in note]
    assert len(about) == (told is not None)
    assert told is None or told in about[0]


def test_files_that_are_masks_only_by_the_settings_share_nothing(tmp_path: Path) -> None:
    rows = [f"{n // 2}.png,{n}.png" for n in range(24)]
    (tmp_path / "m.csv").write_text("\n".join(["image,lesion", *rows]))
    _, guess = settled(tmp_path / "m.csv", {"lesion": {"kind": "mask", "of": "image"}}, guess_fields=True)
    assert guess.group_column == "image"


def test_files_that_are_shared_in_two_ways_are_told_and_nothing_is_chosen(tmp_path: Path) -> None:
    rows = [f"{n // 2}.wav,n{n % 20}.wav" for n in range(24)]
    (tmp_path / "m.csv").write_text("\n".join(["file,noise", *rows]))
    _, guess = settled(tmp_path / "m.csv")
    assert guess.group_column is None
    told = "WARNING: some rows share a file of 'file', some one of 'noise': samples may leak; set splits.group"
    assert any(note.startswith(told) for note in guess.notes)


def test_digits_that_float32_loses_are_told_until_a_dtype_is_set(tmp_path: Path) -> None:
    manifest = tmp_path / "m.csv"
    manifest.write_text("at,b\n" + "".join(f"{1_700_000_000.5 + n},{'xy'[n % 2]}\n" for n in range(9)))
    for fields in ({}, {"at": {"kind": "scalar"}}):
        for more in ({}, {"guess_fields": False}):
            if fields or not more:
                _, guess = settled(manifest, fields, **more)
                assert any("set fields.at.dtype: float64 to keep" in note for note in guess.notes)
    _, guess = settled(manifest, {"at": {"dtype": "float64"}})
    assert not any("float32" in note for note in guess.notes)
