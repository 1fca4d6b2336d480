"""Fields that a store has and a guess no longer finds: refused, not dropped from all samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flatout.errors import ConfigError
from flatout.store import DataPreprocessor, StoreReader

ROWS = "id,age,kind\n" + "".join(f"r{n},{n}.5,{'ab'[n % 2]}\n" for n in range(12))


def config(folder: Path, text: str, **settings: Any) -> dict[str, Any]:
    (folder / "m.csv").write_text(text)
    store = {"preprocessed_data_dir": str(folder / "store"), "num_workers": 0}
    return {"manifest": str(folder / "m.csv"), "key_column": "id", **store, **settings}


def fields(folder: Path) -> dict[str, str]:
    return {name: spec.kind for name, spec in StoreReader(folder / "store").fields.items()}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (ROWS.replace("r7,7.5", "r7,unknown"), "'age' \\(scalar\\) is not found any more"),
        (ROWS.replace(",age", ",n"), "'age' \\(scalar\\) is not found any more"),
        (
            ROWS.replace(".5,", ",").replace("age", "age_class"),
            "'age' \\(scalar\\) is not found any more",
        ),
    ],
)
def test_one_that_is_gone(tmp_path: Path, text: str, told: str) -> None:
    DataPreprocessor(config(tmp_path, ROWS)).run()
    assert fields(tmp_path) == {"age": "scalar", "kind": "label"}
    before = StoreReader(tmp_path / "store").meta.content_hash
    with pytest.raises(ConfigError, match=told):
        DataPreprocessor(config(tmp_path, text)).run()
    assert StoreReader(tmp_path / "store").meta.content_hash == before
    assert DataPreprocessor(config(tmp_path, ROWS)).run().processed == 0
    assert DataPreprocessor(config(tmp_path, text)).run(force=True).num_samples == 12
    assert "age" not in fields(tmp_path)


def test_one_of_another_kind(tmp_path: Path) -> None:
    DataPreprocessor(config(tmp_path, ROWS)).run()
    words = ROWS
    for number in range(12):
        words = words.replace(f"{number}.5", ("low", "high")[number % 2])
    with pytest.raises(ConfigError, match="'age' was a scalar and would be a label"):
        DataPreprocessor(config(tmp_path, words)).run()


def test_who_says_what_is_meant_is_followed(tmp_path: Path) -> None:
    DataPreprocessor(config(tmp_path, ROWS)).run()
    DataPreprocessor(config(tmp_path, ROWS, fields={"age": None})).run()
    assert fields(tmp_path) == {"kind": "label"}
    DataPreprocessor(config(tmp_path, ROWS)).run()  # one more is no loss
    assert fields(tmp_path) == {"age": "scalar", "kind": "label"}


def test_a_field_that_becomes_the_split_is_meant(tmp_path: Path) -> None:
    text = "id,age,fold\n" + "".join(f"r{n},{n}.5,{('train', 'val')[n % 2]}\n" for n in range(12))
    DataPreprocessor(config(tmp_path, text)).run()
    assert fields(tmp_path) == {"age": "scalar", "fold": "label"}
    DataPreprocessor(config(tmp_path, text, splits={"column": "fold"})).run()
    assert fields(tmp_path) == {"age": "scalar"}


def test_the_way_out_that_is_told_is_one(tmp_path: Path) -> None:
    DataPreprocessor(config(tmp_path, ROWS)).run()
    gone = "id,kind\n" + "".join(f"r{n},{'ab'[n % 2]}\n" for n in range(12))
    with pytest.raises(ConfigError, match=r"drop a field \(--set fields\.NAME=null\)"):
        DataPreprocessor(config(tmp_path, gone)).run()
    DataPreprocessor(config(tmp_path, gone, fields={"age": None})).run()
    assert fields(tmp_path) == {"kind": "label"}


@pytest.mark.parametrize(
    "more",
    [{"fields": {"kind": {"dtype": "int32"}}}, {"key_column": None, "key_rule": "column:id"}],
    ids=["another field is set", "the key is said otherwise"],
)
def test_what_is_said_of_others_means_nothing_for_it(tmp_path: Path, more: dict[str, Any]) -> None:
    DataPreprocessor(config(tmp_path, ROWS)).run()
    with pytest.raises(ConfigError, match="'age' \\(scalar\\) is not found any more"):
        DataPreprocessor(config(tmp_path, ROWS.replace("r7,7.5", "r7,unknown"), **more)).run()


def test_a_key_column_that_was_a_field_is_meant(tmp_path: Path) -> None:
    DataPreprocessor(config(tmp_path, ROWS)).run()
    DataPreprocessor(config(tmp_path, ROWS, key_column="age")).run()
    assert "age" not in fields(tmp_path)
