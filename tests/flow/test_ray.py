"""The Ray engine: tasks of a cluster make the same bytes as processes of this machine, and lose no more."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.store.crashing import Source, check_finished, shard_hashes

from flatout.store.preprocessor import DataPreprocessor
from flatout.store.reader import StoreReader

ray = pytest.importorskip("ray", reason="ray is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

DEEDS = """
import ctypes, time
import numpy as np

def make(row):
    if row["deed"] == "crash":
        ctypes.string_at(0)
    if row["deed"] == "hang":
        time.sleep(1000)
    if row["deed"] == "fail":
        raise ValueError("not this one")
    return {"x": np.full(8, float(row["id"]))}
"""


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One for all tests: it takes seconds to start."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def many_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.store.plan.MIN_SHARD_BYTES", 1)
    monkeypatch.setattr("flatout.store.plan.MIN_SHARDS", 8)


def test_the_bytes_are_the_same(tmp_path: Path) -> None:
    source = Source(tmp_path / "source")
    source.add(range(60))
    source.spoil(range(2))
    DataPreprocessor(source.settings(tmp_path / "local", num_workers=2)).run()

    stats = DataPreprocessor(source.settings(tmp_path / "ray", engine="ray", num_workers=2)).run()

    check_finished(tmp_path / "ray", source.model, source.bad)
    assert shard_hashes(tmp_path / "ray") == shard_hashes(tmp_path / "local")
    assert (stats.processed, stats.failed) == (62, 2)


def test_a_crash_or_a_hang_costs_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "flatout_test_ray.py").write_text(DEEDS)
    deeds = ["good"] * 40
    deeds[20], deeds[25], deeds[30] = "crash", "hang", "fail"
    rows = "".join(f"{number},{deed}\n" for number, deed in enumerate(deeds))
    (tmp_path / "rows.csv").write_text("id,deed\n" + rows)
    config: dict[str, Any] = {
        "manifest": str(tmp_path / "rows.csv"),
        "preprocessed_data_dir": str(tmp_path / "store"),
        "transform": "flatout_test_ray:make",
        "engine": "ray",
        "num_workers": 2,
        "decode_timeout_s": 1,
    }

    stats = DataPreprocessor(config).run()

    lines = (tmp_path / "store" / "quarantine.jsonl").read_text().splitlines()
    stages = {row["key"]: row["stage"] for row in map(json.loads, lines)}
    assert stages == {"20": "worker", "25": "worker", "30": "transform"}
    assert stats.num_samples == 37
    keys = set(map(int, StoreReader(tmp_path / "store").keys()))
    assert keys == set(range(40)) - {20, 25, 30}


def test_errors_that_concern_every_row(tmp_path: Path) -> None:
    """The disk, not a sample: the run ends with the same error as anywhere."""
    from flatout.errors import StoreError

    source = Source(tmp_path / "source")
    source.add(range(10))
    config = source.settings(tmp_path / "store", engine="ray", num_workers=2)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "shards").write_text("in the way")

    with pytest.raises(StoreError, match="shards"):
        DataPreprocessor(config).run()
