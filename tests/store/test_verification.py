"""Verify: every kind of damage to every kind of file is found, and named as closely as can be."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flatout.errors import StoreError, StoreMissingError, StoreVersionError
from flatout.store import DataPreprocessor, StoreReader, compact, verification, verify
from flatout.store.companions import replace_companion
from flatout.store.index import read_index, write_index
from flatout.store.layout import dataset_paths
from flatout.store.verification import Damage

pytestmark = pytest.mark.usefixtures("few_shards")


def test_a_good_store(stored: Path) -> None:
    report = verify(stored)
    meta = StoreReader(stored).meta
    assert report
    assert report.damage == ()
    assert report.damaged_shards == []
    assert (report.num_samples, report.num_shards) == (12, 3)
    assert report.num_bytes == sum(shard.size for shard in meta.shards)
    assert report.content_hash == meta.content_hash
    assert report.to_json()["ok"] is True


def test_nothing_to_verify(tmp_path: Path, prepared: Any, forge_root: Callable[..., None]) -> None:
    with pytest.raises(StoreMissingError):
        verify(tmp_path / "absent")
    forge_root(prepared.store, lambda document: document.update(version=2))
    with pytest.raises(StoreVersionError):
        verify(prepared.store)


@pytest.mark.parametrize(("change", "rows"), [(None, [4, 4, 4]), (5, [4, 4, 4, 1])])
def test_progress_counts_all_rows_that_are_read(source: Any, change: int | None, rows: list[int]) -> None:
    """Deleted and replaced rows stand in the shards, and are checked with them."""
    source.prepare()
    if change is not None:
        source.put(change, seed=70)
        source.prepare()
    events: list[Any] = []

    class Told:
        def begin(self, what: str, total: int) -> None:
            events.append((what, total))

        def advance(self, rows: int) -> None:
            events.append(rows)

        def bad(self, rows: int) -> None:
            assert rows == 0

        def say(self, text: str) -> None:
            events.append(text)

    assert verify(source.store, Told())
    assert events == [("verify", sum(rows)), *rows]


def place_of(store: StoreReader, shard: int, path: str) -> int:
    at = dict(zip(dataset_paths(store.meta.fields), store.meta.shards[shard].at, strict=True))[path]
    assert at is not None
    return at


def large_store(folder: Path) -> StoreReader:
    """Samples of 4 KiB and more, which have a crc each."""

    class Rows:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> Any:
            generator = np.random.default_rng(index)
            return {
                "x": generator.normal(size=1024).astype("f4"),
                "y": generator.normal(size=600 * (index + 1)),
            }

    preprocessor = DataPreprocessor.from_dataset(Rows(), folder, num_workers=0, transform_version="1")
    preprocessor.run()
    return StoreReader(folder)


def test_names_shard_sample_and_field(tmp_path: Path, flip_bit: Callable[..., None]) -> None:
    store = large_store(tmp_path / "store")
    keys = store.keys()
    shard = store.meta.shards[1]
    path = store.folder / "shards" / shard.file
    flip_bit(path, place_of(store, 1, "x") + 2 * 4096 + 17)
    offsets = store.shard(1).tables["y/offsets"]
    flip_bit(path, place_of(store, 1, "y/values") + int(offsets[3]) * 8)
    report = verify(store.folder)
    assert not report
    assert report.damaged_shards == [shard.file]
    assert set(report.damage) == {
        Damage(f"shards/{shard.file}", "crc differs", keys[4 + 2], "x"),
        Damage(f"shards/{shard.file}", "crc differs", keys[4 + 3], "y"),
    }
    assert report.to_json()["damage"][0]["key"] == keys[6]


def test_every_sampled_bit_of_a_shard_matters(prepared: Any, flip_bit: Callable[..., None]) -> None:
    store = StoreReader(prepared.store)
    shard = store.meta.shards[2]
    path = prepared.store / "shards" / shard.file
    generator = np.random.default_rng(0)
    starts = [at for at in shard.at if at is not None]
    skeleton = [0, 8, 96, 600, 2048]
    for offset in [*starts, *skeleton, shard.size - 1, *generator.integers(0, shard.size, 20).tolist()]:
        flip_bit(path, int(offset), int(offset) % 8)
        assert verify(prepared.store).damaged_shards == [shard.file]
        flip_bit(path, int(offset), int(offset) % 8)
    assert verify(prepared.store)


@pytest.mark.parametrize(
    "name",
    ["preprocessed_data.h5", "quarantine.jsonl", "preprocessing_stats.json", "index", "data_metadata.json"],
)
@pytest.mark.parametrize("how", ["flip", "cut", "lose", "empty", "grow"])
def test_every_other_file_matters(prepared: Any, flip_bit: Callable[..., None], name: str, how: str) -> None:
    if name == "quarantine.jsonl":  # it has something in it only if a row is bad
        (prepared.folder / "s03.npy").write_bytes(b"broken")
        prepared.prepare(max_bad_fraction=0.5)
    name = StoreReader(prepared.store).meta.index if name == "index" else name
    path = prepared.store / name
    data = path.read_bytes()
    if how == "flip":
        flip_bit(path, len(data) // 3, 1)
    elif how == "lose":
        path.unlink()
    else:
        path.write_bytes({"cut": data[:-1], "empty": b"", "grow": data + b"\0"}[how])
    if name == "data_metadata.json" and how == "lose":
        with pytest.raises(StoreMissingError):
            verify(prepared.store)
        return
    if name == "data_metadata.json" and how == "cut":
        assert verify(prepared.store)  # the line end after the last brace says nothing; the brace does
        path.write_bytes(data[:-2])
    report = verify(prepared.store)
    assert [damage.file for damage in report.damage] == [name]
    assert report.damaged_shards == []


@pytest.mark.parametrize("how", ["lose", "cut", "tables"])
def test_the_samples_of_a_shard_that_cannot_be_read_are_named(
    prepared: Any, flip_bit: Callable[..., None], how: str
) -> None:
    store = StoreReader(prepared.store)
    shard = store.meta.shards[1]
    path = prepared.store / "shards" / shard.file
    if how == "tables":
        flip_bit(path, shard.at[0])
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    first, *others = verify(prepared.store).damage
    assert (first.file, first.key) == (f"shards/{shard.file}", None)
    wanted = [store.keys()[at] for at in np.flatnonzero(store.numbers["shard"] == 1)]
    assert [damage.key for damage in others] == wanted
    assert {(damage.file, damage.reason) for damage in others} == {(first.file, "its shard cannot be read")}
    (prepared.store / store.meta.index).unlink()  # then nobody knows them
    assert [damage.key for damage in verify(prepared.store).damage] == [None, None]


def test_lost_cut_zeroed_and_grown_shards(prepared: Any, shard_paths: Callable[..., list[Path]]) -> None:
    paths = shard_paths(prepared.store)
    good = {path: path.read_bytes() for path in paths}
    for path, data in good.items():
        page = len(data) // 4096 // 2 * 4096
        zeroed = [data[:at] + bytes(4096) + data[at + 4096 :] for at in (0, page)]
        for broken in (None, b"", data[:4096], data[:-1], data + b"\0", *(z for z in zeroed if z != data)):
            path.unlink()
            if broken is not None:
                path.write_bytes(broken)
            assert verify(prepared.store).damaged_shards == [path.name]
            path.write_bytes(data)
    assert verify(prepared.store)


def test_every_zeroed_page_with_data_is_found(prepared: Any, shard_paths: Callable[..., list[Path]]) -> None:
    path = shard_paths(prepared.store)[0]
    data = path.read_bytes()
    found = 0
    for at in range(0, len(data), 4096):
        zeroed = data[:at] + bytes(len(data[at : at + 4096])) + data[at + 4096 :]
        if zeroed != data:
            path.write_bytes(zeroed)
            assert verify(prepared.store).damaged_shards == [path.name]
            found += 1
    assert found > 8


def test_swapped_shards_are_both_found(prepared: Any, shard_paths: Callable[..., list[Path]]) -> None:
    first, second, _ = shard_paths(prepared.store)
    other = first.with_suffix(".swap")
    first.rename(other)
    second.rename(first)
    other.rename(second)
    assert first.stat().st_size == second.stat().st_size  # so the sizes tell nothing
    assert verify(prepared.store).damaged_shards == sorted([first.name, second.name])


def test_an_older_shard_in_the_place_of_a_new_one_is_found(prepared: Any, tmp_path: Path) -> None:
    old = StoreReader(prepared.store).meta.shards[0]
    prepared.put(0, seed=50)
    prepared.prepare(force=True)
    new = StoreReader(prepared.store).meta.shards[0]
    assert (new.size, new.file == old.file) == (old.size, False)
    shutil.copy(prepared.store / "shards" / old.file, prepared.store / "shards" / new.file)
    assert verify(prepared.store).damaged_shards == [new.file]


def hostile_index(
    prepared: Any, forge_root: Callable[..., None], edit: Callable[[Any], Any], **root: Any
) -> Any:
    meta = StoreReader(prepared.store).meta
    name, digest = write_index(prepared.store, edit(read_index(prepared.store / meta.index)))
    forge_root(prepared.store, lambda document: document.update(index=name, index_blake3=digest, **root))
    return verify(prepared.store)


def column(name: str, edit: Callable[[list[Any]], Any]) -> Callable[[Any], Any]:
    def change(table: Any) -> Any:
        values = table[name].to_pylist()
        edit(values)
        at = table.schema.get_field_index(name)
        return table.set_column(at, name, pa.array(values, table[name].type))

    return change


def put(position: int, value: Any) -> Callable[[list[Any]], None]:
    return lambda values: values.__setitem__(position, value)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (column("shard", put(0, 3)), "names a shard that the root does not have"),
        (column("shard", put(0, -1)), "names a shard that the root does not have"),
        (column("split", put(0, 9)), "names a split that the root does not have"),
        (column("row", put(0, 4)), "rows that the shard does not have, or one twice"),
        (column("row", put(0, -1)), "rows that the shard does not have, or one twice"),
        (column("row", put(0, 1)), "rows that the shard does not have, or one twice"),
        (column("key_hash", put(0, 5)), "the sample is another sample than the index says"),
        (column("digest", put(0, 5)), "has other content than the index says"),
        (column("length_text", put(0, 5)), "has another length than the index says"),
        (column("key", put(0, "else")), "content hash differs"),
        (lambda table: table.slice(1), "11 rows, the root says 12"),
        (lambda table: table.drop_columns(["path"]), "other columns"),
        (lambda table: table.drop_columns(["shard"]), "other columns"),
        (column("path", put(0, None)), "other columns"),
    ],
)
def test_an_index_that_contradicts_root_or_shards(
    prepared: Any, forge_root: Callable[..., None], edit: Callable[[Any], Any], reason: str
) -> None:
    report = hostile_index(prepared, forge_root, edit)
    assert any(reason in damage.reason for damage in report.damage)


def test_a_hostile_shard_with_a_root_that_vouches_for_it(
    prepared: Any, shard_paths: Callable[..., list[Path]], reseal_shard: Callable[..., None], tmp_path: Path
) -> None:
    path = shard_paths(prepared.store)[0]
    with h5py.File(path, "r+") as file:
        file["more"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/x")
    reseal_shard(prepared.store, 0)
    report = verify(prepared.store)
    assert report.damaged_shards == [path.name]
    assert "links out of a shard are refused" in report.damage[0].reason


def test_libhdf5_opens_nothing_that_no_hash_vouches_for(
    prepared: Any,
    shard_paths: Callable[..., list[Path]],
    flip_bit: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []
    check = "flatout.store.verification.check_through_libhdf5"
    monkeypatch.setattr(check, lambda path, fields, meta: opened.append(path.name))
    first, second, third = shard_paths(prepared.store)
    flip_bit(first, 100)
    assert verify(prepared.store).damaged_shards == [first.name]
    assert sorted(opened) == sorted([second.name, third.name])


def during(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], Any], times: int = 1) -> None:
    """Let something happen each time just before verify looks at a file of this name."""
    left = iter(range(times))

    def watched(whole: Callable[[Path], str]) -> Callable[[Path], str]:
        def hashed(path: Path) -> str:
            if path.name.startswith(name) and next(left, None) is not None:
                act()
            return whole(path)

        return hashed

    for hashing in ("hash_file", "hash_shard"):
        monkeypatch.setattr(verification, hashing, watched(getattr(verification, hashing)))


def update(prepared: Any) -> Callable[[], Any]:
    """The store loses a sample each time, and what it no longer needs."""

    def act() -> None:
        del prepared.rows[0]
        prepared.save()
        prepared.prepare()
        compact(prepared.store)

    return act


@pytest.mark.parametrize("name", ["preprocessed_data.h5", "preprocessing_stats.json", "index-", "000000-"])
def test_a_store_that_is_prepared_again_meanwhile_is_not_damaged(
    prepared: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    during(monkeypatch, name, update(prepared))
    report = verify(prepared.store)
    assert report.damage == ()
    assert report.num_samples == 11


def test_companions_of_a_commit_under_way_are_not_damaged(
    prepared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New companions stand there, announced; the root is still the old one when verify ends."""
    act = lambda: replace_companion(prepared.store, "preprocessing_stats.json", b"{}")  # noqa: E731
    during(monkeypatch, "preprocessing_stats.json", act)
    assert verify(prepared.store).damage == ()


def test_real_damage_is_told_although_the_store_changed(
    prepared: Any, monkeypatch: pytest.MonkeyPatch, flip_bit: Callable[..., None]
) -> None:
    def act() -> None:
        update(prepared)()
        flip_bit(prepared.store / "preprocessed_data.h5", 100)

    during(monkeypatch, "preprocessed_data.h5", act)
    assert [damage.file for damage in verify(prepared.store).damage] == ["preprocessed_data.h5"]


def test_a_store_that_never_rests_is_no_damaged_one(prepared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    during(monkeypatch, "preprocessed_data.h5", update(prepared), times=99)
    with pytest.raises(StoreError, match="changed 3 times while it was read"):
        verify(prepared.store)


def test_an_index_that_opens_as_millions_of_rows_is_not_read(
    prepared: Any, forge_root: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = StoreReader(prepared.store).meta
    table = read_index(prepared.store / meta.index)
    many = pa.concat_tables([table] * 100)
    name, digest = write_index(prepared.store, many)
    forge_root(prepared.store, lambda document: document.update(index=name, index_blake3=digest))
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *a, **k: pytest.fail("it was read"))
    (damage,) = verify(prepared.store).damage
    assert "1,200 rows, the root says 12" in damage.reason
