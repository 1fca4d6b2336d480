"""Compaction: dead rows go, everything else stays what it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from flatout.errors import StoreCorruptError, StoreLockedError, StoreMissingError
from flatout.store import DataPreprocessor, StoreReader, compact, journal, verify
from flatout.store.lock import locked

pytestmark = pytest.mark.usefixtures("few_shards")


def shard_files(store: Path) -> set[str]:
    return {path.name for path in (store / "shards").iterdir()}


def contents(store: Path) -> dict[str, dict[str, Any]]:
    reader = StoreReader(store)
    return {key: reader.read(position) for position, key in enumerate(reader.keys())}


def assert_equal(found: dict[str, dict[str, Any]], expected: dict[str, dict[str, Any]]) -> None:
    assert list(found) == list(expected)
    for key, sample in expected.items():
        for name, array in sample.items():
            assert found[key][name].dtype == array.dtype
            np.testing.assert_array_equal(found[key][name], array)


@pytest.mark.parametrize(
    "fields",
    [
        None,
        {
            "image": {"kind": "array", "encoding": "uint8", "compression": "zstd"},
            "series": {"kind": "sequence", "encoding": "int16", "compression": "gzip"},
            "label": {"kind": "label"},
            "text": {"kind": "text", "compression": "zstd"},
        },
    ],
)
def test_keeps_every_live_sample_and_frees_the_rest(source: Any, fields: Any) -> None:
    settings = {} if fields is None else {"fields": fields}
    source.prepare(**settings)
    source.put(1, seed=70)
    del source.rows[5], source.rows[0]
    source.save()
    stats = source.prepare(**settings)
    expected, before = contents(source.store), shard_files(source.store)
    result = compact(source.store)
    assert result.shards_rewritten == 2
    assert result.files_deleted == 2 + 2  # two shards, and the indexes of the versions before
    assert result.bytes_freed >= 0
    assert_equal(contents(source.store), expected)
    meta = StoreReader(source.store).meta
    assert meta.content_hash == stats.content_hash
    assert shard_files(source.store) == {shard.file for shard in meta.shards}
    assert len(before & shard_files(source.store)) == 2
    assert sum(shard.rows for shard in meta.shards) == 10
    assert verify(source.store)
    assert source.prepare(**settings).processed == 0
    with h5py.File(source.store / "preprocessed_data.h5", "r") as file:
        assert file["key"].asstr()[:].tolist() == list(expected)


def test_equals_a_full_rebuild(source: Any) -> None:
    source.prepare()
    del source.rows[3]
    source.put(7, seed=71)
    source.save()
    source.prepare()
    compact(source.store)
    assert source.prepare(preprocessed_data_dir=str(source.folder / "rebuilt")).content_hash == (
        StoreReader(source.store).meta.content_hash
    )


def test_nothing_to_do(prepared: Any, all_bytes: Callable[[Path], dict[str, bytes]]) -> None:
    before = all_bytes(prepared.store)
    result = compact(prepared.store)
    assert (result.shards_rewritten, result.files_deleted, result.bytes_freed) == (0, 0, 0)
    assert all_bytes(prepared.store) == before


def test_deletes_what_the_root_does_not_name_and_nothing_else(prepared: Any) -> None:
    strays = [
        prepared.store / "shards" / "000009-0000000000000000.h5",
        prepared.store / "index-0123456789abcdef.parquet",
    ]
    own = [
        "notes.txt",
        "index-of-papers.parquet",
        "plan-for-may.parquet",
        "draft.tmp",
        "shards/README",
        "shards/a.h5",
    ]
    kept = [prepared.store / name for name in own]
    for path in (*strays, *kept):
        path.write_bytes(b"x" * 1000)
    result = compact(prepared.store)
    assert (result.files_deleted, result.bytes_freed) == (2, 2000)
    assert [path.exists() for path in (*strays, *kept)] == [False] * 2 + [True] * 6
    prepared.prepare(force=True)
    assert all(path.exists() for path in kept)


def test_a_damaged_sample_is_never_written_anew(
    source: Any, flip_bit: Callable[..., None], all_bytes: Callable[[Path], dict[str, bytes]]
) -> None:
    source.prepare()
    del source.rows[0]
    source.save()
    source.prepare()
    store = StoreReader(source.store)
    path = source.store / "shards" / store.meta.shards[0].file
    flip_bit(path, store.shard(0).meta.at[-4] + 80 + 3)  # the second image
    before = all_bytes(source.store)
    with pytest.raises(StoreCorruptError, match="sample 's01' does not match its checksum"):
        compact(source.store)
    assert all_bytes(source.store) == before


def test_pieces_of_a_row_keep_their_numbers(source: Any) -> None:
    class Rows:
        def __init__(self, num_rows: int) -> None:
            self.num_rows = num_rows

        def __len__(self) -> int:
            return self.num_rows

        def __getitem__(self, index: int) -> Any:
            return [{"x": np.full(2, 10 * index + part)} for part in range(3)]

    folder = source.folder / "pieces"
    for num_rows in (6, 5):
        DataPreprocessor.from_dataset(Rows(num_rows), folder, num_workers=0, transform_version="1").run()
    expected = contents(folder)
    assert list(expected)[:4] == ["0#0000", "0#0001", "0#0002", "1#0000"]
    assert compact(folder).shards_rewritten == 1
    assert_equal(contents(folder), expected)
    assert len(expected) == 15


def test_not_while_it_is_being_prepared(prepared: Any, tmp_path: Path) -> None:
    with locked(prepared.store), pytest.raises(StoreLockedError):
        compact(prepared.store)
    with pytest.raises(StoreMissingError):
        compact(tmp_path)


def test_shards_that_an_interrupted_prepare_has_finished_stay(
    source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.prepare()
    for number in range(20, 32):
        source.add(number)
    source.save()
    with monkeypatch.context() as patch:
        patch.setattr("flatout.store.prepare.commit", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            source.prepare()
    under_way = journal.find(source.store)
    assert under_way is not None
    finished = {shard.file for shard in under_way.shards()}
    assert finished
    (source.store / "shards" / "000099-0000000000000000.h5").write_bytes(b"x")
    assert compact(source.store).files_deleted == 1
    assert finished <= shard_files(source.store)
    with monkeypatch.context() as patch:
        patch.setattr("flatout.store.task.ShardWriter.write", lambda *a, **k: 1 / 0)  # nothing is made again
        assert source.prepare().num_samples == 24
    assert verify(source.store)
