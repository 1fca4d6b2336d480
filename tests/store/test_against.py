"""Against the source: what differs, what changed, what is new or gone."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from flatout.store import StoreReader, compare_with_source
from flatout.store.index import read_index, write_index

pytestmark = pytest.mark.usefixtures("few_shards")


@pytest.fixture
def fresh(source: Any) -> Any:
    source.prepare()
    return source


def test_nothing_differs(fresh: Any) -> None:
    report = compare_with_source(fresh.store)
    assert report
    assert report.compared == 12
    assert report.to_json()["ok"] is True


def test_only_some_rows(fresh: Any) -> None:
    assert compare_with_source(fresh.store, 5).compared == 5
    assert compare_with_source(fresh.store, 50).compared == 12


def test_changed_new_and_gone_rows(fresh: Any) -> None:
    fresh.put(3, seed=30)
    fresh.rows[5]["label"] = "gnu"
    del fresh.rows[0]
    fresh.add(20)
    fresh.save()
    report = compare_with_source(fresh.store)
    assert not report
    assert report.changed == ("s03", "s05")
    assert report.gone == ("s00",)
    assert report.new == ("s20",)
    assert (report.compared, report.differing, report.failed) == (9, (), ())


def test_other_values_under_the_same_state(fresh: Any) -> None:
    path = fresh.folder / "s04.npy"
    stat = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # size and time as before
    report = compare_with_source(fresh.store)
    assert report.differing == ("s04",)
    assert report.changed == ()
    assert not report


def test_with_checksums_the_content_tells(source: Any) -> None:
    source.prepare(checksum=True)
    path = source.folder / "s04.npy"
    stat = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert compare_with_source(source.store).changed == ("s04",)


def test_a_file_that_is_gone_is_a_change(fresh: Any) -> None:
    (fresh.folder / "s04.npy").unlink()
    report = compare_with_source(fresh.store)
    assert report.changed == ("s04",)
    assert not report


def test_a_row_that_cannot_be_decoded_now(fresh: Any) -> None:
    path = fresh.folder / "s04.npy"
    stat = path.stat()
    path.write_bytes(b"x" * stat.st_size)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    report = compare_with_source(fresh.store)
    assert [(row.key, row.stage) for row in report.failed] == [("s04", "decode")]
    assert not report


def test_rows_in_quarantine_are_not_new(fresh: Any) -> None:
    (fresh.folder / "s04.npy").write_bytes(b"broken")
    fresh.prepare(max_bad_fraction=0.5)
    assert compare_with_source(fresh.store).new == ()


def test_other_settings_are_told(fresh: Any, forge_root: Callable[..., None]) -> None:
    def edit(document: dict[str, Any]) -> None:
        document["settings"]["fields"]["image"]["dtype"] = "float64"

    forge_root(fresh.store, edit)
    report = compare_with_source(fresh.store)
    assert any("dtype" in line for line in report.code_changes)
    assert not report


def test_a_forged_digest_differs(fresh: Any, forge_root: Callable[..., None]) -> None:
    store = StoreReader(fresh.store)
    table = read_index(fresh.store / store.meta.index)
    digests = table["digest"].to_numpy().copy()
    digests[2] += 1
    position = table.schema.get_field_index("digest")
    name, digest = write_index(fresh.store, table.set_column(position, "digest", [digests]))
    forge_root(fresh.store, lambda document: document.update(index=name, index_blake3=digest))
    assert compare_with_source(fresh.store).differing == ("s02",)
