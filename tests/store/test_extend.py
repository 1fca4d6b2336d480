"""A field is added without touching the others' bytes; cut off anywhere, the store is what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.errors import ConfigError, StoreCorruptError, StoreError
from flatout.store import DataPreprocessor, StoreReader, compact, verify
from flatout.store import extend as extending
from flatout.store.extend import ADDED, add_field, extended_fields
from flatout.store.shard_writer import ShardWriter
from flatout.types import FieldSpec

NUM_ITEMS = 23
SPEC = FieldSpec("embedding", "array", "float32", (4,))
VALUES = np.arange(NUM_ITEMS * 4, dtype=np.float32).reshape(NUM_ITEMS, 4)
FIELDS = {
    "coded": {"kind": "transform", "encoding": "uint8"},
    "packed": {"kind": "transform", "compression": "zstd"},
    "series": {"kind": "sequence"},
    "label": {"kind": "label"},
}


class Items:
    """Every form of field."""

    def __len__(self) -> int:
        return NUM_ITEMS

    def __getitem__(self, at: int) -> dict[str, Any]:
        random = np.random.default_rng(at)
        return {
            "coded": random.random((3, 9), np.float32),
            "packed": random.integers(0, 9, (50,)).astype(np.int32),
            "series": random.random((at % 7 + 1, 3), np.float32),
            "label": at % 5,
        }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of several shards."""
    monkeypatch.setattr("flatout.store.plan.MIN_SHARD_BYTES", 1024)
    DataPreprocessor.from_dataset(Items(), tmp_path / "store", num_workers=0, fields=FIELDS).run()
    assert len(StoreReader(tmp_path / "store").meta.shards) > 2
    return tmp_path / "store"


def stored(store: StoreReader, names: list[str]) -> list[dict[str, Any]]:
    """Every sample's bytes as they stand in the shards."""
    numbers = store.numbers
    return [
        {name: store.shard(int(shard)).stored(name, int(row)).tobytes() for name in names}
        for shard, row in zip(numbers["shard"], numbers["row"], strict=True)
    ]


@pytest.mark.parametrize("is_own", [True, False])
def test_a_field_is_added(folder: Path, tmp_path: Path, is_own: bool) -> None:
    before = StoreReader(folder)
    target = folder if is_own else tmp_path / "other"
    meta = add_field(before, target, SPEC, VALUES, origin={"encoder": "x:y"})
    after = StoreReader(target)
    assert after.meta == meta
    assert verify(target)
    assert list(after.fields) == [*before.fields, "embedding"]
    assert after.keys() == before.keys()
    assert np.array_equal(after.numbers["split"], before.numbers["split"])
    assert stored(after, list(before.fields)) == stored(before, list(before.fields))
    for at in range(NUM_ITEMS):
        assert np.array_equal(after.read(at)["embedding"], VALUES[at])
        assert np.array_equal(after.read(at)["coded"], before.read(at)["coded"])
    assert meta.settings[ADDED] == {"embedding": {"encoder": "x:y"}}
    assert meta.fingerprint == before.meta.fingerprint
    assert meta.content_hash != before.meta.content_hash


def test_added_again_it_is_replaced(folder: Path) -> None:
    add_field(StoreReader(folder), folder, SPEC, VALUES)
    wider = FieldSpec("embedding", "array", "float32", (8,))
    add_field(StoreReader(folder), folder, wider, np.repeat(VALUES, 2, axis=1))
    store = StoreReader(folder)
    assert list(store.fields) == [*FIELDS, "embedding"]
    assert store.read(3)["embedding"].tolist() == np.repeat(VALUES[3], 2).tolist()
    compact(folder)
    assert verify(folder)
    assert StoreReader(folder).read(3)["embedding"].tolist() == np.repeat(VALUES[3], 2).tolist()


def test_fields_can_be_left_out_of_another_store(folder: Path, tmp_path: Path) -> None:
    add_field(StoreReader(folder), tmp_path / "small", SPEC, VALUES, keep=["label"])
    small = StoreReader(tmp_path / "small")
    assert verify(tmp_path / "small")
    assert list(small.fields) == ["label", "embedding"]
    assert [int(small.read(at)["label"]) for at in range(NUM_ITEMS)] == [at % 5 for at in range(NUM_ITEMS)]
    assert small.fields["label"] == StoreReader(folder).fields["label"]


def test_dead_rows_are_not_copied(tmp_path: Path) -> None:
    """A sample whose file changed stands in its old shard still; positions are those of the live ones."""
    for number in range(NUM_ITEMS):
        np.save(tmp_path / f"{number}.npy", np.full(6, number, np.float32))
    lines = [f"s{number},{number}.npy" for number in range(NUM_ITEMS)]
    (tmp_path / "rows.csv").write_text("\n".join(["id,x", *lines]))
    config = {"manifest": str(tmp_path / "rows.csv"), "preprocessed_data_dir": str(tmp_path / "store")}
    config |= {"num_workers": 0, "fields": {"x": {"kind": "array"}}}
    DataPreprocessor(config).run()
    np.save(tmp_path / "4.npy", np.full(6, -4, np.float32))
    DataPreprocessor(config).run()
    before = StoreReader(tmp_path / "store")
    assert sum(shard.rows for shard in before.meta.shards) == NUM_ITEMS + 1
    add_field(before, tmp_path / "store", SPEC, VALUES)
    after = StoreReader(tmp_path / "store")
    assert verify(tmp_path / "store")
    assert sum(shard.rows for shard in after.meta.shards) == NUM_ITEMS
    assert [after.read(at)["embedding"][0] for at in range(NUM_ITEMS)] == VALUES[:, 0].tolist()
    expected = [-4 if number == 4 else number for number in range(NUM_ITEMS)]
    assert [after.read(at)["x"][0] for at in range(NUM_ITEMS)] == expected
    # Nothing of the others is out of date for that.
    again = DataPreprocessor(config).run()
    assert (again.processed, again.unchanged) == (0, NUM_ITEMS)
    assert "embedding" in StoreReader(tmp_path / "store").fields


def test_an_unfinished_prepare_is_finished_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has made is without the field: put together, the two would be no store."""
    monkeypatch.setattr("flatout.store.plan.MIN_SHARD_BYTES", 1)
    config = {"manifest": str(tmp_path / "rows.csv"), "preprocessed_data_dir": str(tmp_path / "store")}
    config |= {"num_workers": 0, "fields": {"x": {"kind": "scalar"}}}
    rows = [f"s{number},{number}.5" for number in range(2 * NUM_ITEMS)]

    def prepare(num_rows: int) -> None:
        (tmp_path / "rows.csv").write_text("\n".join(["id,x", *rows[:num_rows]]))
        DataPreprocessor(config).run()

    prepare(NUM_ITEMS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flatout.store.prepare.commit", cut_off)
        with pytest.raises(KeyboardInterrupt):
            prepare(2 * NUM_ITEMS)
    store, files = StoreReader(tmp_path / "store"), sorted((tmp_path / "store").rglob("*"))
    with pytest.raises(StoreError, match=r"unfinished prepare: .* Run the same 'flatout prepare' again"):
        add_field(store, tmp_path / "store", SPEC, VALUES)
    assert sorted((tmp_path / "store").rglob("*")) == files
    add_field(store, tmp_path / "other", SPEC, VALUES)  # nothing is continued there
    prepare(2 * NUM_ITEMS)
    add_field(StoreReader(tmp_path / "store"), tmp_path / "store", SPEC, np.repeat(VALUES, 2, axis=0))
    assert verify(tmp_path / "store")
    assert verify(tmp_path / "other")


def cut_off(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("at_shard", [0, 2])
def test_cut_off_it_leaves_the_store_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch, at_shard: int
) -> None:
    files = {path.name for path in (folder / "shards").iterdir()}
    root = (folder / "data_metadata.json").read_bytes()
    write, calls = ShardWriter.write, iter(range(100))

    def stopped(self: ShardWriter, *arguments: Any) -> Any:
        if next(calls) == at_shard:
            raise KeyboardInterrupt
        return write(self, *arguments)

    monkeypatch.setattr(ShardWriter, "write", stopped)
    with pytest.raises(KeyboardInterrupt):
        add_field(StoreReader(folder), folder, SPEC, VALUES)
    assert (folder / "data_metadata.json").read_bytes() == root
    assert {path.name for path in (folder / "shards").iterdir()} == files
    assert verify(folder)


def test_cut_off_before_the_root_is_swapped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(extending, "save_metadata", stopped)
    with pytest.raises(KeyboardInterrupt):
        add_field(StoreReader(folder), folder, SPEC, VALUES)
    monkeypatch.undo()
    assert verify(folder)
    assert "embedding" not in StoreReader(folder).fields
    add_field(StoreReader(folder), folder, SPEC, VALUES)
    assert verify(folder)


def test_a_damaged_sample_is_not_carried_on(folder: Path) -> None:
    store = StoreReader(folder)
    path = folder / "shards" / store.meta.shards[1].file
    data = bytearray(path.read_bytes())
    place = store.shard(1).offset_of("coded")
    assert place is not None
    data[place] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(StoreCorruptError):
        add_field(StoreReader(folder), folder, SPEC, VALUES)


def test_names_are_checked(folder: Path) -> None:
    store = StoreReader(folder)
    with pytest.raises(ConfigError, match="cannot be used"):
        extended_fields(store, FieldSpec("a/b", "array", "float32", ()), None)
    with pytest.raises(ConfigError, match="no field 'lable'"):
        extended_fields(store, SPEC, ["lable"])
