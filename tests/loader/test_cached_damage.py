"""Full disks and damaged shards: the training goes on, and every item is right."""

from __future__ import annotations

import json
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
)
from tests.loader.caching import items as items

from flatout.store import verify
from flatout.store.metadata import ROOT, SHARD_FOLDER


def test_a_full_disk_does_not_end_the_training(
    items: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, data: Any) -> None:
        raise OSError(28, "No space left on device")

    dataset = cached(items(), tmp_path / "cache", shard_bytes=10_000)
    dataset[0]
    dataset.close()
    monkeypatch.setattr("flatout.store.shard_file.write_all", fail)
    with pytest.warns(RuntimeWarning, match="No space left") as caught:
        assert_all(dataset)
    assert len(caught) == 1
    assert_all(dataset)
    assert [path.suffix for path in (tmp_path / "cache" / SHARD_FOLDER).iterdir()] == [".h5"]
    monkeypatch.undo()
    assert_all(cached(items(), tmp_path / "cache"))
    assert verify(tmp_path / "cache")


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def damage_content(path: Path) -> None:
    flip(path, path.stat().st_size - 3)


def damage_tables(path: Path) -> None:
    data = path.read_bytes()
    flip(path, data.index(b"101112"))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "content": damage_content,
    "tables": damage_tables,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "missing": lambda path: path.unlink(),
}


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
        assert_all(cached(items(size=size), tmp_path / "cache"), size)
    assert len(caught) == 1
    assert sorted(decoded(tmp_path)) == sorted([*range(NUM_ITEMS)] * 2)
    assert verify(tmp_path / "cache")
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


def test_an_error_of_this_process_alone_is_no_damage(
    items: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(cached(items(), tmp_path / "cache"))
    dataset = cached(items(), tmp_path / "cache")

    def refuse(*arguments: Any, **settings: Any) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("flatout.store.shard_reader.mmap.mmap", refuse)
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
