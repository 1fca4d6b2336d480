"""Full disks and damaged shards: the training goes on, and every item is right."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.loader.caching import (
    NUM_ITEMS,
    assert_all,
    assert_item,
    cached,
    decoded,
    entries,
    expected,
)
from tests.loader.caching import items as items

from flatout.store import verify
from flatout.store.metadata import ROOT, SHARD_FOLDER, is_store


def full(*arguments: Any, **settings: Any) -> Any:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("call", ["shard_file.write_all", "shard_writer.sync_file", "fill.log.write_all"])
def test_a_full_disk_does_not_end_the_training(
    items: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    dataset = cached(items(), tmp_path / "cache", shard_bytes=10_000)
    dataset[0]
    dataset.close()
    monkeypatch.setattr(f"flatout.store.{call}", full)
    with pytest.warns(RuntimeWarning, match="No space left") as caught:
        assert_all(dataset)
    assert len(caught) == 1
    assert_all(dataset)
    assert {path.suffix for path in (tmp_path / "cache" / SHARD_FOLDER).iterdir()} == {".h5"}
    monkeypatch.undo()
    again = cached(items(), tmp_path / "cache")
    assert again.num_cached == 1
    assert_all(again)
    assert verify(tmp_path / "cache")


def test_a_disk_too_full_for_the_index_leaves_a_cache(
    items: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.store.commit.write_index", full)
    dataset = cached(items(), tmp_path / "cache")
    for _ in range(2):
        assert_all(dataset)
    assert not is_store(tmp_path / "cache")
    monkeypatch.undo()
    assert_all(cached(items(), tmp_path / "cache"))
    assert verify(tmp_path / "cache")
    assert len(decoded(tmp_path)) == NUM_ITEMS


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def damage_content(path: Path) -> None:
    """A bit of item 5's signal, whatever its length."""
    start = expected(5, 30)["signal"].numpy().tobytes()
    flip(path, path.read_bytes().index(start) + 17)


def damage_text(path: Path) -> None:
    flip(path, path.read_bytes().index(b"item 31item 32") + 5)


def damage_tables(path: Path) -> None:
    data = path.read_bytes()
    flip(path, data.index(b"101112"))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "content": damage_content,
    "text": damage_text,
    "tables": damage_tables,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "missing": lambda path: path.unlink(),
}


def read_twice(dataset: Any, size: int) -> None:
    """What was read before the damage was met is decoded in the second epoch."""
    for _ in range(2):
        assert_all(dataset, size)


@pytest.mark.parametrize("has_root", [True, False], ids=["root", "no root"])
@pytest.mark.parametrize("size", [30, 2000], ids=["small", "large"])
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_decoded_again(items: Any, tmp_path: Path, name: str, size: int, has_root: bool) -> None:
    list(cached(items(size=size), tmp_path / "cache"))
    if not has_root:
        (tmp_path / "cache" / ROOT).unlink()
    (shard,) = (tmp_path / "cache" / SHARD_FOLDER).iterdir()
    DAMAGE[name](shard)
    with pytest.warns(RuntimeWarning, match=r"is damaged: .* 40 items are decoded again") as caught:
        read_twice(cached(items(size=size), tmp_path / "cache"), size)
    assert len(caught) == 1
    assert sorted(decoded(tmp_path)) == sorted([*range(NUM_ITEMS)] * 2)
    assert verify(tmp_path / "cache")
    assert len(list((tmp_path / "cache" / SHARD_FOLDER).iterdir())) == 1
    assert_all(cached(items(size=size), tmp_path / "cache"), size)


def test_others_hear_of_damage(items: Any, tmp_path: Path) -> None:
    one, other = (cached(items(), tmp_path / "cache", shard_bytes=1) for _ in range(2))
    list(one)
    list(other)
    shard = next((tmp_path / "cache" / SHARD_FOLDER).glob("000003-*"))
    shard.write_bytes(b"")
    with pytest.warns(RuntimeWarning, match="is damaged") as caught:
        assert_all(cached(items(), tmp_path / "cache"))
    assert len(caught) == 1
    assert other.num_cached == NUM_ITEMS
    assert_all(other)
    assert verify(tmp_path / "cache")


def test_what_replaces_a_damaged_segment_is_checked_again(items: Any, tmp_path: Path) -> None:
    dataset = cached(items(), tmp_path / "cache")
    for _ in range(2):
        assert_all(dataset)
    folder = tmp_path / "cache" / SHARD_FOLDER
    (old,) = folder.iterdir()
    damage_content(old)
    with pytest.warns(RuntimeWarning, match="is damaged"):
        assert_all(cached(items(), tmp_path / "cache"))
    (new,) = folder.iterdir()
    assert new != old
    damage_content(new)
    assert dataset.num_cached == NUM_ITEMS
    with pytest.warns(RuntimeWarning, match="is damaged"):
        assert_all(dataset)


def test_what_killed_writers_left_is_swept_up(items: Any, tmp_path: Path) -> None:
    dataset = cached(items(), tmp_path / "cache")
    folder = tmp_path / "cache" / SHARD_FOLDER
    for name, age_s in (("000009.h5.1-2.tmp", 7200), ("000009-0123456789abcdef.h5", 7200), ("new.tmp", 0)):
        (folder / name).write_text("")
        os.utime(folder / name, (time.time() - age_s,) * 2)
    list(dataset)
    assert sorted(path.name[:6] for path in folder.iterdir()) == ["000000", "new.tm"]


def test_an_error_of_this_process_alone_is_no_damage(
    items: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(cached(items(), tmp_path / "cache"))
    dataset = cached(items(), tmp_path / "cache")

    def refuse(*arguments: Any, **settings: Any) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("flatout.store.byte_source.map_file", refuse)
    assert_item(dataset[3], 3)
    monkeypatch.undo()
    assert cached(items(), tmp_path / "cache").is_complete
    assert [entry for entry in entries(tmp_path / "cache") if entry.drop] == []


def test_nothing_is_pickled(items: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(cached(items(), tmp_path / "cache", version=None))

    def refuse(*arguments: Any, **settings: Any) -> Any:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(f"pickle.{name}", refuse)
    assert_all(cached(items(), tmp_path / "cache", version=None))
    head = json.loads((tmp_path / "cache" / "cache.json").read_text())
    assert head["num_items"] == NUM_ITEMS
