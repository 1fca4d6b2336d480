"""A source that is replaced by another while it is prepared: no row gets what stands there now."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flatout.errors import TooManyBadError
from flatout.store import DataPreprocessor, StoreReader, task, verify
from flatout.store.progress import Silent

NUM_ROWS = 60
ORDER = [NUM_ROWS - 1, *range(NUM_ROWS - 1)]
"""The last row first: every other one stands one place further on."""
MAKER = """
import io
import numpy as np
from flatout.types import Limits

def make(row):
    return {"x": np.load(io.BytesIO(row["file"].read_bytes(Limits())))}
"""


class Swap(Silent):
    """Does something as soon as the first rows are made."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self.is_done = False

    def advance(self, count: int) -> None:
        if count and not self.is_done:
            self.is_done = True
            self._act()


def write_lists(path: Path, order: Sequence[int]) -> None:
    table = pa.table({"id": [f"s{n:03d}" for n in order], "x": [np.full(50, n, np.float32) for n in order]})
    pq.write_table(table, path.with_suffix(".new"), row_group_size=5)
    path.with_suffix(".new").replace(path)


def write_tar(path: Path, order: Sequence[int]) -> None:
    with tarfile.open(path.with_suffix(".new"), "w") as tar:
        for number in order:
            data = io.BytesIO()
            np.save(data, np.full(50, number, np.float32))
            member = tarfile.TarInfo(f"s{number:03d}.npy")
            member.size = data.tell()
            data.seek(0)
            tar.addfile(member, data)
    os.utime(path.with_suffix(".new"), (10**9 + order[0], 10**9 + order[0]))
    path.with_suffix(".new").replace(path)


def lists_config(folder: Path) -> tuple[dict[str, Any], Callable[[Sequence[int]], None]]:
    fields = {"x": {"kind": "sequence"}}
    config = {"manifest": str(folder / "m.parquet"), "key_column": "id", "fields": fields}
    return config, lambda order: write_lists(folder / "m.parquet", order)


def tar_config(folder: Path) -> tuple[dict[str, Any], Callable[[Sequence[int]], None]]:
    names = [f"s{number:03d}" for number in range(NUM_ROWS)]
    (folder / "m.csv").write_text("\n".join(["id,file", *(f"{name},{name}.npy" for name in names)]))
    config = {
        "manifest": str(folder / "m.csv"),
        "tarred_audio_filepaths": str(folder / "all.tar"),
        "key_column": "id",
        "fields": {"x": {"kind": "signal", "column": "file", "source_rate": 100}},
    }
    return config, lambda order: write_tar(folder / "all.tar", order)


def transform_config(folder: Path) -> tuple[dict[str, Any], Callable[[Sequence[int]], None]]:
    """The members of a tar, read by code that is not ours."""
    config, write = tar_config(folder)
    (folder / "swapped_maker.py").write_text(MAKER)
    return {**config, "fields": {}, "transform": "swapped_maker:make", "code_dir": str(folder)}, write


def values_of(store: Path) -> dict[str, float]:
    reader = StoreReader(store)
    return {key: float(reader.read(at)["x"].flat[0]) for at, key in enumerate(reader.keys())}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("make_config", [lists_config, tar_config, transform_config])
def test_rows_that_stand_elsewhere_by_now_are_refused_and_the_next_run_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_config: Any, num_workers: int
) -> None:
    monkeypatch.setattr("flatout.store.engine.FED_ROWS", 5)
    monkeypatch.setattr("flatout.store.engine.TELL_S", -1.0)
    monkeypatch.setattr(task, "SHARD_BYTES", 2000)
    monkeypatch.setattr("flatout.store.plan.MIN_SHARDS", 12)
    monkeypatch.setattr("flatout.store.plan.MIN_SHARD_BYTES", 1)
    settings, write = make_config(tmp_path)
    write(range(NUM_ROWS))
    store = tmp_path / "store"
    config = {**settings, "preprocessed_data_dir": str(store), "num_workers": num_workers}
    config["preprocess_batch_size"] = 1
    swap = Swap(lambda: write(ORDER))
    with pytest.raises(
        TooManyBadError, match=r"was changed after its (rows|members) were \w+; run prepare again"
    ):
        DataPreprocessor(config).run(progress=swap)
    assert swap.is_done

    swap = Swap(lambda: write(range(NUM_ROWS)))
    (store / "journal.jsonl").unlink(missing_ok=True)
    DataPreprocessor({**config, "max_bad_fraction": 1.0}).run(progress=swap)
    assert swap.is_done
    assert 0 < len(values_of(store)) < NUM_ROWS
    assert values_of(store) == {key: float(key[1:]) for key in values_of(store)}

    assert DataPreprocessor(config).run().failed == 0
    assert values_of(store) == {f"s{number:03d}": float(number) for number in range(NUM_ROWS)}
    assert verify(store)
