"""What a source would give, against plain counting and against the store that it then gives."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flatout.config import load_config
from flatout.store import DataPreprocessor, forecast, summarise_source, summarise_store

pytestmark = pytest.mark.usefixtures("few_shards")


def field(found: Any, name: str) -> Any:
    return next(item for item in found.fields if item.name == name)


def test_a_source_in_numbers_before_it_is_prepared(source: Any) -> None:
    (source.folder / "s03.npy").unlink()
    config = load_config(source.config())
    found = summarise_source(config)
    assert (found.num_rows, found.num_samples, found.num_decoded, found.num_shards) == (12, 11, 12, 0)
    assert sum(found.splits.values()) == found.num_groups == 11
    assert [(row.key, row.stage) for row in found.bad] == [("s03", "find")]
    files = [source.folder / row[name] for row in source.rows for name in ("image", "series")]
    assert found.disk_bytes == sum(p.stat().st_size for p in files if p.exists() and "s03" not in p.name)
    assert field(found, "image").shape == [4, 5]
    assert {name: sum(counts.values()) for name, counts in field(found, "label").classes.items()} == {
        "cat": 3,
        "dog": 4,
        "eel": 4,
    }
    assert not source.store.exists()


def test_validate_decodes_every_row(source: Any) -> None:
    for number in (2, 11):
        (source.folder / f"s{number:02d}.npy").write_bytes(b"broken")
    found = summarise_source(load_config(source.config()), validate=True)
    assert [row.key for row in sorted(found.bad, key=lambda row: row.key)] == ["s02", "s11"]
    assert found.num_bad == 2
    assert not source.store.exists()


def test_rows_looked_at_are_spread_evenly(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "NUM_LOOKED_AT", 2)
    (source.folder / "s11.npy").write_bytes(b"broken")
    found = summarise_source(load_config(source.config()))
    assert [row.key for row in found.bad] == ["s11"]
    assert any("shapes and sizes from 1 of 12 rows, spread evenly;" in note for note in found.notes)


def test_a_manifest_that_holds_the_values_is_what_lies_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "values.csv"
    path.write_text("id,value\n" + "".join(f"a{n},{n}.5\n" for n in range(9)))
    config = load_config({"manifest": str(path), "fields": {"value": {"kind": "scalar"}}})
    assert summarise_source(config).disk_bytes == path.stat().st_size


def test_validate_tells_the_values_as_a_store_of_them_would(source: Any) -> None:
    config = load_config(source.config())
    checked = summarise_source(config, validate=True)
    source.prepare()
    stored = summarise_store(source.store)
    for name in ("image", "series", "label", "text"):
        for number in ("low", "high", "mean", "num_measured", "num_nan", "num_infinite"):
            found, wanted = getattr(field(checked, name), number), getattr(field(stored, name), number)
            assert found == (wanted if wanted is None else pytest.approx(wanted, rel=1e-6)), (name, number)
    assert field(checked, "image").num_measured == checked.num_samples == 12
    assert field(summarise_source(config), "image").low is None


def test_validate_counts_what_is_not_finite_in_rows_that_it_refuses(source: Any) -> None:
    array = np.full((4, 5), 500, np.float32)
    array[0, :3] = np.nan, np.nan, np.inf
    np.save(source.folder / "s05.npy", array)
    image = field(summarise_source(load_config(source.config()), validate=True), "image")
    assert (image.num_nan, image.num_infinite, image.high) == (2, 1, 500)


def break_rows(source: Any, *numbers: int) -> None:
    for number in numbers:
        (source.folder / f"s{number:02d}.npy").write_bytes(b"broken")


def test_validate_counts_what_a_store_then_has(source: Any) -> None:
    break_rows(source, 2, 7, 11)
    config = load_config(source.config(max_bad_fraction=0.5))
    checked = summarise_source(config, validate=True)
    source.prepare(max_bad_fraction=0.5)
    stored = summarise_store(source.store)
    assert (checked.num_rows, checked.num_decoded, checked.num_bad) == (12, 12, 3)
    assert checked.num_samples == stored.num_samples == 9
    assert checked.splits == stored.splits
    assert checked.num_groups == stored.num_groups
    assert field(checked, "label").classes == field(stored, "label").classes
    fixed = [name for name in ("image", "label") if field(stored, name).num_bytes]
    assert [field(checked, name).num_bytes for name in fixed] == [
        field(stored, name).num_bytes for name in fixed
    ]


@pytest.mark.parametrize("validate", [False, True])
def test_rows_that_give_several_samples(tmp_path: Path, validate: bool) -> None:
    for number, length in enumerate((4, 6, 8, 3)):
        np.save(tmp_path / f"{number}.npy", np.arange(length, dtype=np.float32))
    rows = "".join(f"{number}.npy,{'ab'[number % 2]},train\n" for number in range(4))
    (tmp_path / "m.csv").write_text(f"path,label,split\n{rows}")
    wave = {"kind": "signal", "column": "path", "source_rate": 1, "split": "windows", "length": 2}
    fields = {"wave": wave, "label": {"kind": "label"}}
    config = load_config({"manifest": str(tmp_path / "m.csv"), "fields": fields, "num_workers": 0})
    found = summarise_source(config, validate=validate)
    if validate:  # 2, 3, 4 and 1 windows
        assert (found.num_samples, found.splits) == (10, {"train": 10})
        assert field(found, "label").classes == {"a": {"train": 6}, "b": {"train": 4}}
    else:  # 2.5 a row
        assert (found.num_samples, found.splits) == (10, {"train": 10})
        assert field(found, "label").classes == {"a": {"train": 5}, "b": {"train": 5}}
    assert found.memory_bytes == 10 * (2 * 4 + 8)


def test_no_row_that_can_be_decoded_is_no_count_of_samples(
    source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "NUM_LOOKED_AT", 2)
    break_rows(source, 0, 11)
    config = load_config(source.config(max_bad_fraction=0.5))
    found = summarise_source(config)
    assert (found.num_samples, found.num_decoded, found.num_bad, list(found.fields)) == (None, 2, 2, [])
    assert found.refusal == "none of the 2 rows looked at can be decoded"
    checked = summarise_source(config, validate=True)  # looks on
    assert (checked.num_samples, checked.num_decoded, checked.num_bad, checked.refusal) == (10, 12, 2, "")
    break_rows(source, *range(12))
    checked = summarise_source(config, validate=True)
    assert (checked.num_samples, checked.num_decoded, checked.num_bad) == (None, 12, 12)
    assert checked.refusal == "12 of 12 rows are bad, more than max_bad_fraction 0.5 allows"


def test_missing_files_are_named_with_their_place(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "NUM_LOOKED_AT", 1)
    (source.folder / "s03.npy").unlink()
    (source.folder / source.rows[5]["series"]).unlink()  # the second file of its row
    found = {row.key: row.error for row in summarise_source(load_config(source.config())).bad}
    places = {"s03": source.folder / "s03.npy", "s05": source.folder / source.rows[5]["series"]}
    assert found == {key: f"'{place}': No such file or directory" for key, place in places.items()}


def test_a_member_that_no_tar_has_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "NUM_LOOKED_AT", 1)
    for name in ("x0.npy", "x1.npy"):
        np.save(tmp_path / name, np.zeros(3, np.float32))
    with tarfile.open(tmp_path / "audio_0.tar", "w") as tar:
        tar.add(tmp_path / "x0.npy", "x0.npy")
    (tmp_path / "m.csv").write_text("audio_filepath\nx0.npy\nx1.npy\n")
    settings = {
        "manifest": str(tmp_path / "m.csv"),
        "tarred_audio_filepaths": "audio_0.tar",
        "fields": {"x": {"kind": "array", "column": "audio_filepath"}},
    }
    (bad,) = summarise_source(load_config(settings)).bad
    assert bad.error.startswith("no member 'x1.npy' in audio_0.tar; add the tar")
    assert (bad.stage, bad.path) == ("find", f"{tmp_path}/audio_0.tar:x1.npy")


def test_tables_of_lists_are_what_lies_on_disk(tmp_path: Path) -> None:
    for split in ("train", "val"):
        table = pa.table({"id": [f"{split}{n}" for n in range(4)], "x": [[1.0, 2.0]] * 4})
        pq.write_table(table, tmp_path / f"{split}.parquet")
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    one_each = {split: str(tmp_path / f"{split}.parquet") for split in ("train", "val")}
    for manifest in (str(tmp_path), one_each):
        assert summarise_source(load_config({"manifest": manifest})).disk_bytes == sum(sizes)


def test_classes_are_named_as_a_store_names_them(tmp_path: Path) -> None:
    rows = ["0.5,cat,1", "1.5, cat,0", "2.5,dog,1", "3.5,,0", "4.5,dog,1"]
    (tmp_path / "m.csv").write_text("\n".join(["x,name,number", *rows]) + "\n")
    label = {"name": {"kind": "label"}, "number": {"kind": "label", "classes": ["no", "yes"]}}
    settings = {
        "manifest": str(tmp_path / "m.csv"),
        "preprocessed_data_dir": str(tmp_path / "store"),
        "fields": {"x": {"kind": "scalar"}, **label},
        "splits": {"ratios": {"train": 1}},
        "num_workers": 0,
        "max_bad_fraction": 0.5,
    }
    DataPreprocessor(settings).run()
    stored = summarise_store(tmp_path / "store")
    for validate in (False, True):
        found = summarise_source(load_config(settings), validate=validate)
        for name in label:
            assert field(found, name).classes == field(stored, name).classes
    assert field(stored, "number").classes == {"no": {"train": 1}, "yes": {"train": 3}}


def test_guessed_fields_of_any_columns_can_be_stored(tmp_path: Path) -> None:
    """Names that no field can have, and a list that is missing among the first."""
    x = [[float(n), 1.0] for n in range(20)]
    y = [None if n == 3 else values for n, values in enumerate(x)]
    table = pa.table({"id": [f"a{n}" for n in range(20)], "Age (years)": np.arange(20) / 2, "x": x, "y": y})
    pq.write_table(table, tmp_path / "m.parquet")
    settings = {
        "manifest": str(tmp_path / "m.parquet"),
        "preprocessed_data_dir": str(tmp_path / "store"),
        "num_workers": 0,
    }
    DataPreprocessor(settings).run()
    stored = summarise_store(tmp_path / "store")
    assert [item.name for item in stored.fields] == ["sequence", "Age_years"]
    assert field(stored, "Age_years").high == 9.5
    assert (stored.num_samples, stored.num_bad) == (19, 1)
    assert field(summarise_source(load_config(settings)), "Age_years").kind == "scalar"
