"""Labels, numbers and texts of a split: the same from a store and from the manifest of raw files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.config import load_config
from flatout.errors import LoaderError
from flatout.store import DataPreprocessor
from flatout.train.loaders import open_loaders

ROWS = [
    {
        "file": f"{n}.npy",
        "text": "añ" * n,
        "label": "xy"[n % 2],
        "age": n / 4,
        "split": "train" if n % 3 else "val",
    }
    for n in range(10)
]


def config_of(folder: Path, rows: list[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    for row in rows:
        np.save(folder / str(row["file"]), np.zeros(3, np.float32))
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    kinds = {"text": "text", "label": "label", "age": "scalar"}
    return {
        "manifest": str(folder / "rows.jsonl"),
        "preprocessed_data_dir": str(folder / "store"),
        "splits": {"column": "split"},
        "fields": {"x": {"kind": "array", "column": "file"}} | {name: {"kind": kinds[name]} for name in kinds},
        "num_workers": 0,
        **settings,
    }


def values(config: dict[str, Any], name: str, split: str) -> list[Any]:
    loaders = open_loaders(load_config(config, environ={}), config)
    found = [np.asarray(value) for value in loaders.data.values(name, split)]
    loaders.close()
    return found


@pytest.mark.parametrize("is_prepared", [False, True])
def test_values_of_a_split(tmp_path: Path, is_prepared: bool) -> None:
    config = config_of(tmp_path, ROWS)
    if is_prepared:
        DataPreprocessor(config).run()
    for split in ("train", "val"):
        rows = [row for row in ROWS if row["split"] == split]
        assert [int(one) for one in values(config, "label", split)] == [
            "xy".index(row["label"]) for row in rows
        ]
        assert [float(one) for one in values(config, "age", split)] == [row["age"] for row in rows]
        assert [bytes(one).decode() for one in values(config, "text", split)] == [row["text"] for row in rows]


def test_numbers_that_are_stored_shorter(tmp_path: Path) -> None:
    """Rounded alike on both paths: a scale that is learned from them must not depend on the path."""
    rows = [{**row, "age": 0.1 + n / 7} for n, row in enumerate(ROWS)]
    config = config_of(tmp_path, rows)
    config["fields"]["age"]["encoding"] = "float16"
    raw = [float(one) for one in values({**config, "use_fast_loader": False}, "age", "val")]
    DataPreprocessor(config).run()
    assert [float(one) for one in values(config, "age", "val")] == raw
    assert raw == [float(np.float16(row["age"])) for row in rows if row["split"] == "val"]
    assert raw != [row["age"] for row in rows if row["split"] == "val"]


def test_a_bad_cell_is_named(tmp_path: Path) -> None:
    rows = [{**row, "age": "old" if n == 4 else row["age"]} for n, row in enumerate(ROWS)]
    with pytest.raises(LoaderError, match=r"sample '4\.npy'.*'old' is no number"):
        values(config_of(tmp_path, rows), "age", "train")
