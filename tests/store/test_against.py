"""Against the source: what differs, what changed, what is new or gone."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout.errors import StoreError
from flatout.store import StoreReader, compare_with_source, repair, verify
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


EVIL = """
from pathlib import Path

Path(__file__).with_suffix(".ran").touch()

def make(row):
    return {}
"""


@pytest.mark.parametrize(
    "settings",
    [
        {"transform": "flatout_test_evil:make", "fields": {}},
        {"fields": {"x": {"kind": "custom", "name": "flatout_test_evil"}}},
    ],
)
def test_code_that_a_store_names_is_not_run(
    fresh: Any,
    tmp_path: Path,
    forge_root: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "flatout_test_evil.py").write_text(EVIL)
    forge_root(fresh.store, lambda document: document["settings"].update(settings, config_dir=str(tmp_path)))
    next((fresh.store / "shards").iterdir()).unlink()
    for run in (compare_with_source, lambda folder: repair(folder, verify(folder))):
        with pytest.raises(StoreError, match=f"flatout_test_evil.* from {tmp_path}.*--trust-store"):
            run(fresh.store)
    assert not (tmp_path / "flatout_test_evil.ran").exists()
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    "settings",
    [
        {"task": "flatout_test_worse:make"},
        {"trainer": {"task": "flatout_test_worse:make"}},
    ],
)
def test_a_task_that_a_store_names_is_not_imported(
    fresh: Any,
    tmp_path: Path,
    forge_root: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:
    """Not even from the current folder, which somebody may have unpacked together with the store."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "flatout_test_worse", raising=False)
    (tmp_path / "flatout_test_worse.py").write_text(EVIL)
    forge_root(fresh.store, lambda document: document["settings"].update(settings, code_dir=str(tmp_path)))
    assert compare_with_source(fresh.store)
    assert not (tmp_path / "flatout_test_worse.ran").exists()


def test_code_of_a_store_that_is_trusted_is_run(
    fresh: Any, tmp_path: Path, forge_root: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "flatout_test_kind.py").write_text(EVIL)
    settings = {"transform": "flatout_test_kind:make", "fields": {}, "config_dir": str(tmp_path)}
    forge_root(fresh.store, lambda document: document["settings"].update(settings))
    report = compare_with_source(fresh.store, trusted=True)
    assert report.code_changes
    assert (tmp_path / "flatout_test_kind.ran").exists()


def test_a_folder_that_a_store_names_is_not_imported_from(
    fresh: Any, tmp_path: Path, forge_root: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even without a transform: a module there could have the name of one that a decoder imports."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    forge_root(fresh.store, lambda document: document["settings"].update(config_dir=str(tmp_path / "theirs")))
    assert compare_with_source(fresh.store)
    assert str(tmp_path / "theirs") not in sys.path


def test_rows_in_quarantine_that_can_be_decoded_now_are_new(fresh: Any) -> None:
    good = (fresh.folder / "s04.npy").read_bytes()
    (fresh.folder / "s04.npy").write_bytes(b"broken")
    fresh.prepare(max_bad_fraction=0.5)
    assert compare_with_source(fresh.store)
    (fresh.folder / "s04.npy").write_bytes(good)
    report = compare_with_source(fresh.store)
    assert (report.new, report.differing, report.failed) == (("s04",), (), ())
    assert not report
    assert compare_with_source(fresh.store, 5)  # only some rows of the store


PIECES = """
import json
import numpy as np
from pathlib import Path

def make(row):
    count = json.loads((Path(__file__).parent / "counts.json").read_text())[row["id"]]
    return [{"x": np.full(2, float(part))} for part in range(count)]
"""


def test_pieces_that_are_no_longer_given_or_are_more_differ(
    source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data file of a transform is not looked at; comparing finds what it changed."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flatout_test_pieces.py").write_text(PIECES)
    counts = {row["id"]: 2 for row in source.rows}
    (tmp_path / "counts.json").write_text(json.dumps(counts))
    source.prepare(transform="flatout_test_pieces:make", fields={})
    assert compare_with_source(source.store, trusted=True)
    (tmp_path / "counts.json").write_text(json.dumps(counts | {"s01": 1, "s02": 3}))
    report = compare_with_source(source.store, trusted=True)
    assert report.differing == ("s01#0001", "s02#0002")
    (tmp_path / "counts.json").write_text(json.dumps(counts | {"s01": 0}))
    report = compare_with_source(source.store, trusted=True)
    assert ([row.key for row in report.failed], report.differing) == (["s01"], ())
