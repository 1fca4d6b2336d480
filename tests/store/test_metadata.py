"""The root: round trip, size, and everything a damaged or hostile one may be."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flatout.errors import StoreCorruptError, StoreError, StoreMissingError, StoreVersionError
from flatout.store import metadata
from flatout.store.metadata import (
    ROOT,
    ShardMeta,
    StoreMeta,
    is_replaced,
    is_store,
    load_fields,
    load_metadata,
    save_metadata,
    to_text,
)
from flatout.types import FieldSpec

FIELDS = (
    FieldSpec("image", "image", "float32", (1, 64, 64), encoding="uint8", range=(0.0, 1.0)),
    FieldSpec("label", "label", "int64", (), classes=("cat", "dog")),
)
AT = (40960, 53248, 61440, 69632, 77824, 98304, 110592, 118784, 1118784, 2118784)


def shard(number: int) -> ShardMeta:
    return ShardMeta(f"{number:06d}-{number:016x}.h5", f"{number:032x}", 67_108_864, 500, 4_000_000_000, AT)


def meta_of(num_shards: int = 2, **changes: Any) -> StoreMeta:
    settings: dict[str, Any] = {
        "num_samples": 500 * num_shards,
        "splits": ("train", "val"),
        "fields": FIELDS,
        "index": f"index-{7:016x}.parquet",
        "index_blake3": "7" * 64,
        "content_hash": "8" * 64,
        "shards": tuple(shard(n) for n in range(num_shards)),
        "fingerprint": {"digest": "abc"},
        "settings": {"manifest": "m.csv"},
        "files": {"preprocessed_data.h5": "9" * 64},
        "num_bad": 3,
    }
    return StoreMeta(**{**settings, **changes})


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    assert not is_store(tmp_path)
    save_metadata(tmp_path, meta_of())
    assert is_store(tmp_path)
    assert load_metadata(tmp_path) == meta_of()


def test_a_shard_takes_few_bytes() -> None:
    one, many = (len(to_text(meta_of(num_shards))) for num_shards in (1, 1001))
    assert (many - one) / 1000 < 300


def test_text_is_the_same_for_the_same_store() -> None:
    assert to_text(meta_of()) == to_text(meta_of())


def test_no_folder_here(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreMissingError, match="nothere does not exist"):
        load_metadata(tmp_path / "nothere")
    with pytest.raises(StoreMissingError, match="file is a file"):
        load_metadata(tmp_path / "file")


def test_a_root_that_may_not_be_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ROOT).mkdir()
    with pytest.raises(StoreError, match=rf"{ROOT}: Is a directory.*run the same command again") as refused:
        load_metadata(tmp_path)
    assert type(refused.value) is StoreError
    (tmp_path / ROOT).rmdir()
    save_metadata(tmp_path, meta_of())

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(StoreError, match=f"{ROOT}: Permission denied"):
        load_metadata(tmp_path)


def test_no_store_here(tmp_path: Path) -> None:
    with pytest.raises(StoreMissingError, match=f"has no {ROOT}"):
        load_metadata(tmp_path)


@pytest.mark.parametrize("version", [0, 2, 99, None, "1"])
def test_another_version_is_refused_by_number(
    tmp_path: Path, forge_root: Callable[..., None], version: Any
) -> None:
    save_metadata(tmp_path, meta_of())
    forge_root(tmp_path, lambda document: document.update(version=version))
    with pytest.raises(StoreVersionError, match=f"is format {version}; this release reads 1"):
        load_metadata(tmp_path)


def of_an_early_build(document: dict[str, Any]) -> None:
    """As roots were before rows and samples were hashed with XXH3."""
    del document["identity"]


def test_the_root_of_an_early_build_is_no_damaged_one(tmp_path: Path, forge_root: Callable[..., None]) -> None:
    save_metadata(tmp_path, meta_of())
    forge_root(tmp_path, of_an_early_build)
    with pytest.raises(StoreVersionError, match=r"early build.*'flatout prepare --force'"):
        load_metadata(tmp_path)
    assert load_fields(tmp_path) == meta_of().fields


def test_another_identity_is_of_a_later_release(tmp_path: Path, forge_root: Callable[..., None]) -> None:
    save_metadata(tmp_path, meta_of())
    forge_root(tmp_path, lambda document: document.update(identity="sha1"))
    with pytest.raises(StoreVersionError, match="hashed with sha1; this release reads xxh3-64"):
        load_metadata(tmp_path)


def test_fields_that_cannot_be_told_are_none(tmp_path: Path) -> None:
    assert load_fields(tmp_path) == ()
    save_metadata(tmp_path, meta_of())
    text = (tmp_path / ROOT).read_text()
    (tmp_path / ROOT).write_text(text.replace('"splits"', '"pieces"'))
    assert load_fields(tmp_path) == ()


def test_classes_keep_their_numbers_when_a_store_that_is_not_read_is_forced(
    prepared: Any, forge_root: Callable[..., None]
) -> None:
    forge_root(prepared.store, of_an_early_build)
    prepared.rows[0]["label"] = "ant"
    prepared.save()
    with pytest.raises(StoreVersionError):
        prepared.prepare()
    prepared.prepare(force=True)
    (label,) = (spec for spec in load_metadata(prepared.store).fields if spec.name == "label")
    assert label.classes == ("cat", "dog", "eel", "ant")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"format": "flatout-store", "version": 1',
        b"\xff\xfe\x00",
        b"[]",
        b"1",
        b"null",
        b'"flatout-store"',
        b"{}",
        b'{"format": "other", "version": 1}',
        b'{"format": "flatout-store", "version": 1}',
        b'{"format": "flatout-store", "version": 1, "checksum": "", "shards": []}',
        b"[" * 100_000,
        b"\x89HDF\r\n\x1a\n",
    ],
)
def test_what_is_no_root_is_corrupt(tmp_path: Path, data: bytes) -> None:
    (tmp_path / ROOT).write_bytes(data)
    with pytest.raises(StoreCorruptError, match="is damaged"):
        load_metadata(tmp_path)


def test_every_truncation_is_found(tmp_path: Path) -> None:
    text = to_text(meta_of())
    for size in range(0, len(text) - 2, 37):
        (tmp_path / ROOT).write_text(text[:size])
        with pytest.raises(StoreCorruptError):
            load_metadata(tmp_path)


def test_every_changed_value_breaks_the_checksum(tmp_path: Path) -> None:
    document = json.loads(to_text(meta_of()))
    changed = 0
    for name in document.keys() - {"format", "version", "checksum"}:
        broken = {**document, name: None}
        (tmp_path / ROOT).write_text(json.dumps(broken))
        with pytest.raises(StoreCorruptError, match="checksum"):
            load_metadata(tmp_path)
        changed += 1
    assert changed == 12


def test_flipped_bits_never_load_as_something_else(tmp_path: Path) -> None:
    good, data = meta_of(), bytearray(to_text(meta_of()).encode())
    for at in range(0, len(data), 11):
        data[at] ^= 1 << at % 7
        (tmp_path / ROOT).write_bytes(bytes(data))
        with suppress(StoreCorruptError, StoreVersionError):
            assert load_metadata(tmp_path) == good  # a space that became another kind of space
        data[at] ^= 1 << at % 7


def test_a_giant_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_metadata(tmp_path, meta_of())
    monkeypatch.setattr(metadata, "MAX_ROOT_BYTES", 100)
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail("it was read"))
    with pytest.raises(StoreCorruptError, match="over 100 bytes"):
        load_metadata(tmp_path)


def set_shard(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["shards"][0].update({name: value})


def set_field(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["fields"][0].update({name: value})


@pytest.mark.parametrize(
    "edit",
    [
        *(
            set_shard("file", name)
            for name in (
                "../000000-0000000000000000.h5",
                "/etc/passwd",
                "000000-0000000000000000.h5/../../x",
                "000000-0000000000000000.h5\n",
                "sub/000000-0000000000000000.h5",
                "..",
                "",
                None,
                7,
            )
        ),
        *(
            lambda document, name=name: document.update(index=name)
            for name in ("../index-0000000000000000.parquet", "/x/index-0000000000000000.parquet", "x", None, 3)
        ),
        set_shard("size", -1),
        set_shard("size", 1.5),
        set_shard("rows", "5"),
        set_shard("rows", True),
        set_shard("rows", 67_108_864 // 8 + 1),
        set_shard("size", 500 * 8 - 1),
        set_shard("crc", None),
        set_shard("at", [-4096, *AT[1:]]),
        set_shard("at", list(AT[1:])),
        set_shard("at", ["0"] * len(AT)),
        set_shard("at", None),
        set_shard("surprise", 1),
        set_field("dtype", "object"),
        set_field("shape", [-1, 2]),
        set_field("shape", None),
        set_field("name", "../../x"),
        set_field("encoding", "pickle"),
        set_field("compression", "lzma"),
        set_field("surprise", 1),
        lambda document: document.update(fields={}),
        lambda document: document.update(fields=None),
        lambda document: document.update(shards=None),
        lambda document: document.update(shards=[1]),
        lambda document: document.update(splits=None),
        lambda document: document.update(num_samples=-1),
        lambda document: document.update(num_samples=10**9),
        lambda document: document.update(num_samples="4"),
        lambda document: document.pop("num_samples"),
    ],
)
def test_a_hostile_root_is_refused_though_its_checksum_matches(
    tmp_path: Path, forge_root: Callable[..., None], edit: Callable[[dict[str, Any]], None]
) -> None:
    save_metadata(tmp_path, meta_of())
    forge_root(tmp_path, lambda document: None)
    assert load_metadata(tmp_path) == meta_of()
    forge_root(tmp_path, edit)
    with pytest.raises(StoreCorruptError):
        load_metadata(tmp_path)


def test_keys_of_a_later_release_are_passed_over(tmp_path: Path, forge_root: Callable[..., None]) -> None:
    save_metadata(tmp_path, meta_of())
    forge_root(tmp_path, lambda document: document.update(more={"a": 1}))
    assert load_metadata(tmp_path) == meta_of()


def test_whether_another_root_stands_there(tmp_path: Path) -> None:
    save_metadata(tmp_path, meta_of())
    assert not is_replaced(tmp_path, load_metadata(tmp_path))
    assert is_replaced(tmp_path, meta_of(num_bad=4))
    (tmp_path / ROOT).unlink()
    assert is_replaced(tmp_path, meta_of())
