"""StoreReader: samples by position, across processes, and what it refuses to open."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from flatout.errors import ConfigError, StoreCorruptError, StoreError, StoreMissingError
from flatout.store import ShardReader, StoreReader, compact, reader
from flatout.store.index import read_index, write_index

pytestmark = pytest.mark.usefixtures("few_shards")


def test_samples_are_those_of_the_sources(prepared: Any) -> None:
    store = StoreReader(prepared.store)
    assert len(store) == 12
    assert store.keys() == [row["id"] for row in prepared.rows]
    for position, row in enumerate(prepared.rows):
        sample = store.read(position)
        assert list(sample) == ["image", "series", "label", "text"]
        np.testing.assert_array_equal(sample["image"], np.load(prepared.folder / row["image"]))
        np.testing.assert_array_equal(sample["series"], np.load(prepared.folder / row["series"]))
        assert ("cat", "dog", "eel")[int(sample["label"])] == row["label"]
        assert sample["text"].tobytes().decode() == row["text"]


def test_opening_reads_neither_index_nor_shards(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.store.reader.read_index", lambda *a: pytest.fail("the index was read"))
    monkeypatch.setattr("flatout.store.reader.ShardReader", lambda *a: pytest.fail("a shard was mapped"))
    assert len(StoreReader(str(stored))) == 12


def test_positions_count_from_both_ends(stored: Path) -> None:
    store = StoreReader(stored)
    for position in (0, 5, 11, np.int64(3)):
        from_end = store.read(int(position) - 12)
        np.testing.assert_array_equal(store.read(position)["image"], from_end["image"])
    for position in (12, -13, 10**9):
        with pytest.raises(IndexError, match=f"position {position} of a store with 12 samples"):
            store.read(position)


def test_splits_divide_the_samples(stored: Path) -> None:
    store = StoreReader(stored)
    found = [store.positions(name) for name in store.meta.splits]
    assert sorted(np.concatenate(found).tolist()) == list(range(12))
    with pytest.raises(ConfigError, match=r"no samples in split 'holdout'; it has: .*train"):
        store.positions("holdout")


def test_what_is_read_outlives_the_store_and_can_be_written(stored: Path) -> None:
    image = StoreReader(stored).read(0)["image"]
    image += 1
    assert not np.array_equal(image, StoreReader(stored).read(0)["image"])


def test_pickles_by_its_folder_and_its_root(stored: Path) -> None:
    store = StoreReader(stored)
    store.read(3)
    data = pickle.dumps(store)
    assert len(data) < 1000 + (stored / "data_metadata.json").stat().st_size  # neither index nor samples
    again = pickle.loads(data)
    assert again.meta == store.meta
    np.testing.assert_array_equal(again.read(3)["image"], store.read(3)["image"])


def test_what_is_unpickled_is_of_the_same_version(prepared: Any) -> None:
    store = StoreReader(prepared.store)
    data, keys = pickle.dumps(store), store.keys()
    del prepared.rows[0]
    prepared.save()
    prepared.prepare()
    again = pickle.loads(data)
    assert (again.keys(), len(again)) == (keys, 12)
    np.testing.assert_array_equal(again.read(0)["image"], store.read(0)["image"])
    assert len(StoreReader(prepared.store)) == 11


def compacted(prepared: Any) -> tuple[StoreReader, bytes]:
    """A reader that has mapped nothing, and its pickle; since then the store was updated and compacted."""
    store = StoreReader(prepared.store)
    data = pickle.dumps(store)
    del prepared.rows[0]
    prepared.save()
    prepared.prepare()
    compact(prepared.store)
    return store, data


def test_what_a_compaction_took_away_is_no_damage(prepared: Any) -> None:
    store, data = compacted(prepared)
    for read in (lambda: store.shard(0), lambda: store.numbers, store.keys, lambda: pickle.loads(data)):
        with pytest.raises(StoreError, match=r"compacted or prepared again.*open it anew") as caught:
            read()
        assert not isinstance(caught.value, StoreCorruptError)
    assert len(StoreReader(prepared.store)) == 11


def test_a_shard_that_is_lost_under_an_open_reader_is_damage(
    prepared: Any, shard_paths: Callable[..., list[Path]]
) -> None:
    store = StoreReader(prepared.store)
    shard_paths(prepared.store)[0].unlink()
    with pytest.raises(StoreCorruptError, match=r"is damaged.*--repair"):
        store.shard(0)


def read_in_child(store: StoreReader, queue: Any) -> None:
    queue.put((store.read(3)["image"].tolist(), store._pid == os.getpid()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_works_after_a_fork(stored: Path) -> None:
    store = StoreReader(stored)
    expected = store.read(3)["image"].tolist()
    shard = store.shard(0)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=read_in_child, args=(store, queue))
    child.start()
    assert queue.get() == (expected, True)
    child.join()
    assert store.shard(0) is shard


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreMissingError):
        StoreReader(tmp_path)


@pytest.mark.parametrize("change", [lambda path: path.unlink(), lambda path: os.truncate(path, 5000)])
def test_a_shard_that_is_gone_or_cut_is_told_at_once(
    prepared: Any, shard_paths: Callable[..., list[Path]], change: Callable[[Path], Any]
) -> None:
    path = shard_paths(prepared.store)[1]
    change(path)
    with pytest.raises(StoreCorruptError, match=f"shard {path} is damaged.*--repair"):
        StoreReader(prepared.store)


def with_column(name: str, edit: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def change(table: Any) -> Any:
        at = table.schema.get_field_index(name)
        return table.set_column(at, name, edit(table[name]))

    return change


def put(position: int, value: int) -> Callable[[Any], Any]:
    def edit(column: Any) -> Any:
        values = column.to_pylist()
        values[position] = value
        return pa.array(values, column.type)

    return edit


HOSTILE: list[Callable[[Any], Any]] = [
    with_column("shard", put(3, -1)),
    with_column("shard", put(3, 3)),
    with_column("row", put(3, -1)),
    with_column("split", put(3, 99)),
    with_column("split", put(3, -1)),
    with_column("row", lambda column: column.cast(pa.int64())),
    with_column("row", lambda column: pa.array([None, *column.to_pylist()[1:]], pa.int32())),
    lambda table: table.drop_columns(["shard"]),
    lambda table: table.drop_columns(["length_text"]),
    lambda table: table.slice(1),
    lambda table: pa.concat_tables([table, table.slice(0, 1)]),
]


@pytest.mark.parametrize("change", HOSTILE)
def test_an_index_without_sense_is_refused(
    prepared: Any, forge_root: Callable[..., None], change: Callable[[Any], Any]
) -> None:
    meta = StoreReader(prepared.store).meta
    name, digest = write_index(prepared.store, change(read_index(prepared.store / meta.index)))
    forge_root(prepared.store, lambda document: document.update(index=name, index_blake3=digest))
    store = StoreReader(prepared.store)
    with pytest.raises(StoreCorruptError, match="--repair' rebuilds it"):
        _ = store.numbers


def test_a_row_beyond_its_shard_is_refused(prepared: Any, forge_root: Callable[..., None]) -> None:
    meta = StoreReader(prepared.store).meta
    table = with_column("row", put(3, 4))(read_index(prepared.store / meta.index))
    name, digest = write_index(prepared.store, table)
    forge_root(prepared.store, lambda document: document.update(index=name, index_blake3=digest))
    # Before anything is read: a loader maps all shards in one row, and would serve the next one.
    with pytest.raises(StoreCorruptError, match=r"row 4 in a shard of 4; .*--repair"):
        _ = StoreReader(prepared.store).numbers


def test_an_open_store_stays_what_it_was_while_it_is_prepared_again(prepared: Any) -> None:
    store = StoreReader(prepared.store)
    keys, first = store.keys(), store.read(0)["image"]
    prepared.put(0, seed=77)
    del prepared.rows[4]
    prepared.save()
    prepared.prepare()
    assert store.keys() == keys
    assert len(store.numbers["row"]) == 12
    np.testing.assert_array_equal(store.read(0)["image"], first)
    fresh = StoreReader(prepared.store)
    assert len(fresh) == 11
    assert not np.array_equal(fresh.read(0)["image"], first)


def test_the_root_of_a_store_is_plain_json(stored: Path) -> None:
    document = json.loads((stored / "data_metadata.json").read_text())
    assert (document["format"], document["version"]) == ("flatout-store", 1)
    assert [field["name"] for field in document["fields"]] == ["image", "series", "label", "text"]


class Counted:
    """Bytes of a file that notes what is asked for."""

    asked: ClassVar[list[tuple[str, int, int]]] = []

    def __init__(self, path: Path, size: int) -> None:
        self.path = path

    def read(self, offset: int, size: int) -> Any:
        self.asked.append((self.path.name, offset, size))
        with open(self.path, "rb") as file:
            file.seek(offset)
            return np.frombuffer(file.read(size), np.uint8)

    def announce(self, offset: int, size: int) -> None:
        """Nothing: what is read is what is looked at."""


@pytest.mark.parametrize("field", [None, "image"])
def test_shards_are_announced_a_few_ahead_of_their_reader(
    stored: Path, monkeypatch: pytest.MonkeyPatch, field: str | None
) -> None:
    """Also where one cannot be opened: that is told to whoever reads it."""
    store, told = StoreReader(stored), []
    bad = store.meta.shards[1].file
    open_shard = reader.ShardReader

    def opened(path: Path, *others: Any) -> ShardReader:
        if path.name == bad:
            raise StoreCorruptError("gone")
        return open_shard(path, *others)

    monkeypatch.setattr(reader, "SHARDS_AHEAD", 1)
    monkeypatch.setattr(reader, "ShardReader", opened)
    monkeypatch.setattr(open_shard, "announce_tables", lambda shard: told.append((shard.path.name, None)))
    monkeypatch.setattr(open_shard, "announce_data", lambda shard, name: told.append((shard.path.name, name)))
    names = [meta.file for meta in store.meta.shards]
    seen = []
    for number in store.announced(field):
        seen.append(number)
        assert [name for name, _ in told] == [name for name in names[: number + 2] if name != bad]
    assert seen == list(range(len(names)))
    assert len(names) > 2
    assert {kind for _, kind in told} == {field}
    assert list(store.announced(field, [2, 0])) == [2, 0]


def test_another_source_of_bytes_gives_the_same_samples(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "asked", [])
    store = StoreReader(stored)
    other = store.reading_through(Counted)
    assert other.meta == store.meta
    assert other.numbers is store.numbers
    monkeypatch.setattr("flatout.store.byte_source.map_file", lambda *_: pytest.fail("a shard was mapped"))
    samples = [other.read(position) for position in range(len(other))]
    assert {name for name, _, _ in Counted.asked} == {meta.file for meta in store.meta.shards}
    monkeypatch.undo()
    for position, sample in enumerate(samples):
        wanted = store.read(position)
        assert sample.keys() == wanted.keys()
        for name, value in sample.items():
            np.testing.assert_array_equal(value, wanted[name])


def test_of_a_ragged_sample_only_its_own_bytes_are_read(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = StoreReader(stored).reading_through(Counted).shard(0)
    _ = shard.tables
    monkeypatch.setattr(Counted, "asked", [])
    series = shard.stored("series", 1)
    shard.has_block_crcs("series")
    assert [size for _, _, size in Counted.asked] == [series.nbytes]


def test_a_pickled_reader_maps_again(stored: Path) -> None:
    copy = pickle.loads(pickle.dumps(StoreReader(stored).reading_through(Counted)))
    before = len(Counted.asked)
    assert copy.read(0)["image"].shape
    assert len(Counted.asked) == before


@pytest.mark.parametrize("name", ["image", "series", "label", "text"])
def test_a_damaged_sample_is_not_read(prepared: Any, flip_bit: Callable[..., None], name: str) -> None:
    """Of one crc a sample as of those that small samples share: no other value is served in silence."""
    store = StoreReader(prepared.store)
    shard, row = store.shard(int(store.numbers["shard"][0])), int(store.numbers["row"][0])
    at = (shard.offset_of(name) or 0) + shard.byte_range(name, row)[0]
    key = shard.key(row)
    flip_bit(shard.path, at)
    with pytest.raises(StoreCorruptError, match=f"field '{name}' of sample '{key}'.*checksum.*--repair"):
        StoreReader(prepared.store).read(0)
