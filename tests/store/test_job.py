"""Jobs: which columns of the manifest count, and which travel to those that make the samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.config import load_config
from flatout.store.job import job_from_config, row_task

MAKER = "def make(row):\n    return {'x': [float(row['size'])]}\n"


@pytest.mark.parametrize(
    ("settings", "read"),
    [
        ({"fields": {"size": {"kind": "scalar"}}}, {"size"}),
        ({"fields": {"n": {"kind": "scalar", "column": "size"}, "kind": {"kind": "label"}}}, {"size", "kind"}),
        ({"transform": "job_maker:make"}, {"id", "size", "kind", "notes"}),  # code that is not ours: any
    ],
)
def test_columns_that_nobody_reads_stay_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], read: set[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "job_maker.py").write_text(MAKER)
    rows = [f"r{number},{number},{'ab'[number % 2]},{'long text ' * 9}" for number in range(6)]
    (tmp_path / "m.csv").write_text("\n".join(["id,size,kind,notes", *rows]))
    config = load_config({"manifest": str(tmp_path / "m.csv"), "key_column": "id", **settings}, environ={})
    job = job_from_config(config)
    block = row_task(job, 0, np.array([4, 1])).rows(0, 2)
    assert set(block.columns) == read
    assert block.keys == ["r4", "r1"]
    assert list(block.columns["size"]) == [4, 1]
