"""The state of rows: what tells that a sample is up to date."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flatout.source import Manifest, SourceFile, look, scan, scan_rows
from flatout.source import manifest as manifests
from flatout.source.files import hash_file

OLD_S = 1_600_000_000


def write(path: Path, data: bytes = b"data", age: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (OLD_S - age, OLD_S - age))


def manifest_of(folder: Path, **columns: Any) -> Manifest:
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    keys = pa.array([f"k{n}" for n in range(table.num_rows)], pa.large_string())
    return Manifest(table, keys, folder, ("file", "other"))


def scanned(manifest: Manifest, columns: list[str] | None = None, **settings: Any) -> Any:
    settings = {"allow_outside": False, "checksum": False, "content_rows": None, **settings}
    return scan_rows(manifest, columns or ["file"], **settings)


def test_settled_files_are_known_by_size_and_time(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / name, name.encode() * 7)
    states = scanned(manifest_of(tmp_path, file=["a", "b"]))
    assert len(states) == 2
    assert states.paths == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert states.sizes.tolist() == [7, 7]
    assert states.mtimes_ns.tolist() == [OLD_S * 10**9] * 2
    assert not states.by_content.any()
    assert (states.lasting == states.fingerprints).all()
    assert len(set(states.fingerprints.tolist())) == 2


@pytest.mark.parametrize("checksum", [False, True])
def test_what_a_fingerprint_sees(tmp_path: Path, checksum: bool) -> None:
    def fingerprint(**columns: Any) -> int:
        columns = {"file": ["a"], "label": ["cat"], "note": ["x"], **columns}
        states = scanned(manifest_of(tmp_path, **columns), ["file", "label"], checksum=checksum)
        assert states.by_content.tolist() == [checksum]
        return int(states.fingerprints[0])

    write(tmp_path / "a", b"one")
    first = fingerprint()
    assert fingerprint() == first
    assert fingerprint(note=["y"]) == first  # a column that decides nothing
    assert fingerprint(label=["dog"]) != first
    write(tmp_path / "a", b"two")
    assert (fingerprint() == first) is not checksum  # size and time are as they were
    write(tmp_path / "a", b"one", age=5)
    assert (fingerprint() == first) is checksum
    write(tmp_path / "a", b"longer")
    assert fingerprint() != first


def test_a_moved_project_is_the_same(tmp_path: Path) -> None:
    found = set()
    for name in ("here", "there"):
        write(tmp_path / name / "a")
        found.add(int(scanned(manifest_of(tmp_path / name, file=["a"])).fingerprints[0]))
    assert len(found) == 1


def test_files_just_written_are_known_by_content_until_they_settle(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"fresh")
    manifest = manifest_of(tmp_path, file=["a"])
    fresh = scanned(manifest)
    assert (fresh.by_content[0], fresh.lasting_by_content[0]) == (True, True)
    assert fresh.lasting[0] == fresh.fingerprints[0]
    os.utime(path, (OLD_S, OLD_S))
    # Recorded by content, so compared by content; from then on its time is enough.
    settled = scanned(manifest, content_rows=np.array([True]))
    assert settled.fingerprints[0] == fresh.fingerprints[0]
    assert (settled.by_content[0], settled.lasting_by_content[0]) == (True, False)
    assert settled.lasting[0] == scanned(manifest).fingerprints[0] != settled.fingerprints[0]


def test_unsettled_is_younger_than_two_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a")
    manifest = manifest_of(tmp_path, file=["a"])
    for age_s, by_content in ((1.0, True), (1.999, True), (2.001, False)):
        monkeypatch.setattr(time, "time_ns", lambda age_s=age_s: OLD_S * 10**9 + int(age_s * 1e9))
        assert scanned(manifest).by_content.tolist() == [by_content]


@pytest.mark.parametrize("name", ["absent", "../outside", "/etc/passwd", "http://x/y", "a\0b", ""])
def test_a_file_that_is_not_there_never_matches(tmp_path: Path, name: str) -> None:
    write(tmp_path / "a")
    states = scanned(manifest_of(tmp_path, file=["a", name]))
    assert states.sizes.tolist() == [4, -1]
    assert states.fingerprints[0] != 0
    assert states.fingerprints[1] == states.lasting[1] == 0


def test_outside_only_where_allowed(tmp_path: Path) -> None:
    write(tmp_path / "outside")
    (tmp_path / "base").mkdir()
    manifest = manifest_of(tmp_path / "base", file=["../outside"])
    assert scanned(manifest).sizes.tolist() == [-1]
    assert scanned(manifest, allow_outside=True).sizes.tolist() == [4]


def test_several_files_add_up(tmp_path: Path) -> None:
    write(tmp_path / "a", b"12345")
    write(tmp_path / "b", b"123", age=-10)
    manifest = manifest_of(tmp_path, file=["a", "a"], other=["b", None])
    states = scanned(manifest, ["file", "other"])
    assert states.sizes.tolist() == [8, 5]
    assert states.mtimes_ns[0] == (OLD_S + 10) * 10**9
    assert states.paths == [str(tmp_path / "a")] * 2
    before = states.fingerprints.copy()
    write(tmp_path / "b", b"123", age=-11)
    after = scanned(manifest, ["file", "other"]).fingerprints
    assert (after != before).tolist() == [True, False]


def test_a_folder_is_all_its_files(tmp_path: Path) -> None:
    for name in ("2", "1"):
        write(tmp_path / "series" / name, b"slice")
    manifest = manifest_of(tmp_path, file=["series"])

    def state() -> tuple[int, int]:
        states = scanned(manifest)
        return int(states.sizes[0]), int(states.fingerprints[0])

    first = state()
    assert first[0] == 10
    write(tmp_path / "series" / "3", b"slice")
    assert state()[0] == 15
    (tmp_path / "series" / "3").unlink()
    assert state() == first
    (tmp_path / "series" / "1").rename(tmp_path / "series" / "0")
    assert state() != first


def test_a_member_of_a_tar_is_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "audio.tar", b"headONEheadTWO")
    members = [
        SourceFile(tmp_path / "audio.tar", "one", 4, 3),
        SourceFile(tmp_path / "audio.tar", "two", 11, 3),
    ]

    class Tarred(Manifest):
        def cells(self, name: str, indices: Any) -> list[Any]:
            return [members[at] for at in indices]

    base = manifest_of(tmp_path, file=["one", "two"])
    manifest = Tarred(base.table, base.keys, base.base_path, base.path_columns)
    monkeypatch.setattr(look, "hash_file", lambda path: pytest.fail("the whole tar was read"))
    before = scanned(manifest, checksum=True)
    assert before.sizes.tolist() == [3, 3]
    assert before.paths == [f"{tmp_path / 'audio.tar'}:one", f"{tmp_path / 'audio.tar'}:two"]
    write(tmp_path / "audio.tar", b"headONEheadNEW")
    after = scanned(manifest, checksum=True)
    assert (before.fingerprints == after.fingerprints).tolist() == [True, False]


def test_a_row_of_one_file_is_looked_at_as_any_other(tmp_path: Path) -> None:
    write(tmp_path / "sub" / "a", b"one")
    (tmp_path / "link").symlink_to("sub/a")
    (tmp_path / "out").symlink_to("/dev/null")
    looker = look.Looker(str(tmp_path), allow_outside=False)
    found = [look.SourceFile(tmp_path / "sub" / "a", "a", 1, 2)]
    for cell in (
        "sub/a",
        "link",
        "out",
        "none",
        "sub",
        "",
        "../x",
        str(tmp_path / "sub" / "a"),
        "a\0",
        None,
        *found,
    ):
        row = looker.at((cell,))
        size, stamp = -1 if row.is_missing else row.size, row.fingerprint(7)
        assert looker._look((cell,), 7) == (row.path, size, row.mtime_ns, stamp, stamp)
    looks = looker(([("sub/a",), ("none",)], [7, 8]))
    assert looks.sizes.tolist() == [3, -1]
    assert looks.fingerprints.tolist() == [looker.at(("sub/a",)).fingerprint(7), 0]


def test_rows_without_files_are_known_by_their_values(tmp_path: Path) -> None:
    states = scanned(manifest_of(tmp_path, label=["a", "b", "a"]), ["label"])
    assert states.sizes.tolist() == [0, 0, 0]
    assert states.paths == ["", "", ""]
    first, second, third = states.fingerprints.tolist()
    assert first == third != second


def test_blocks_of_rows_join_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        write(tmp_path / f"{number}", bytes(number))
    manifest = manifest_of(tmp_path, file=[f"{number}" for number in range(7)])
    whole = scanned(manifest)
    monkeypatch.setattr(scan, "SCAN_ROWS", 3)
    parts = scanned(manifest)
    assert parts.sizes.tolist() == whole.sizes.tolist() == list(range(7))
    assert parts.fingerprints.tolist() == whole.fingerprints.tolist()


def test_hash_of_a_file_is_of_all_its_bytes(tmp_path: Path) -> None:
    from blake3 import blake3

    data = np.random.default_rng(0).bytes((2 << 20) + 17)
    write(tmp_path / "a", data)
    assert hash_file(tmp_path / "a") == blake3(data).hexdigest()


def test_rows_are_hashed_once_and_by_their_columns_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though every file is new, so that its content counts, too."""
    monkeypatch.setattr(scan, "SCAN_ROWS", 3)
    names = [f"f{n}" for n in range(5)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    manifest = manifest_of(tmp_path, file=names, note=["x"] * 5)
    hashed: list[tuple[int, list[str]]] = []
    digest_rows = manifests.digest_rows

    def noting(table: Any, *others: Any) -> Any:
        hashed.append((table.num_rows, table.column_names))
        return digest_rows(table, *others)

    monkeypatch.setattr(manifests, "digest_rows", noting)
    assert scanned(manifest).by_content.all()
    assert hashed == [(3, ["file"]), (2, ["file"])]


def test_only_the_rows_that_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the others nothing is known, so they never match."""
    monkeypatch.setattr(scan, "SCAN_ROWS", 3)
    for number in range(9):
        write(tmp_path / f"{number}", bytes(number + 1))
    os.utime(tmp_path / "4")
    manifest = manifest_of(tmp_path, file=[f"{number}" for number in range(9)])
    whole = scanned(manifest)
    for rows in ([0, 1, 2, 3], [4], [1, 3, 4, 8], []):
        some = scanned(manifest, rows=np.array(rows, np.int64))
        others = np.setdiff1d(np.arange(9), rows)
        assert [some.paths[at] for at in rows] == [whole.paths[at] for at in rows]
        assert {some.paths[at] for at in others} <= {""}
        for name in (
            "sizes",
            "mtimes_ns",
            "fingerprints",
            "by_content",
            "lasting",
            "lasting_by_content",
            "stamps",
        ):
            np.testing.assert_array_equal(getattr(some, name)[rows], getattr(whole, name)[rows])
        assert not some.fingerprints[others].any()
        assert (some.sizes[others] == -1).all()


def test_spreading_the_work_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(function: Any, parts: Any) -> list[Any]:
        """As processes do: parts travel, and are finished in any order."""
        waiting = [pickle.loads(pickle.dumps((function, part))) for part in parts]
        return [call(part) for call, part in reversed(waiting)][::-1]

    monkeypatch.setattr(scan, "SCAN_ROWS", 3)
    names = [f"f{n}" for n in range(10)]
    for number, name in enumerate(names[1:]):
        write(tmp_path / name, bytes(number), age=number)
    os.utime(tmp_path / "f4")
    manifest = manifest_of(tmp_path, file=names)
    content = np.arange(10) % 4 == 0
    alone, spread = (scanned(manifest, content_rows=content, spread=how) for how in (map, backwards))
    assert alone.paths == spread.paths
    for name in ("sizes", "mtimes_ns", "fingerprints", "by_content", "lasting", "lasting_by_content"):
        np.testing.assert_array_equal(getattr(alone, name), getattr(spread, name))


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("named", ["a.hdr", "a.img"])
def test_both_halves_of_a_pair_count_whichever_is_named(tmp_path: Path, named: str, checksum: bool) -> None:
    def state() -> Any:
        return scanned(manifest_of(tmp_path, file=[named], label=["cat"]), checksum=checksum)

    write(tmp_path / "a.hdr", b"head")
    write(tmp_path / "a.img", b"voxels")
    before = state()
    assert before.sizes.tolist() == [10]
    assert state().fingerprints == before.fingerprints
    write(tmp_path / "b.img", b"of another pair")
    assert state().fingerprints == before.fingerprints
    for name in ("a.hdr", "a.img"):
        data = (tmp_path / name).read_bytes()
        write(tmp_path / name, data.upper(), age=5)
        assert state().fingerprints != before.fingerprints
        write(tmp_path / name, data)
    assert state().fingerprints == before.fingerprints
