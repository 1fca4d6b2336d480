"""Sights: what is recorded of a row is of the bytes that it was made from, as a scan would have found them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.config.fields import ArrayField
from flatout.errors import SampleError
from flatout.source import (
    NO_SIGHT,
    FieldsMaker,
    Manifest,
    Sight,
    Sighter,
    Sights,
    SourceFile,
    files,
    look,
    make_sighter,
    scan_rows,
)
from flatout.types import Limits, Row

OLD_S = 1_600_000_000
NOW_NS = (OLD_S + 1000) * 10**9


def write(path: Path, data: bytes = b"data", age_s: float = 1000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    time_ns = NOW_NS - int(age_s * 1e9)
    os.utime(path, ns=(time_ns, time_ns))


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "time", SimpleNamespace(time_ns=lambda: NOW_NS))


def manifest_of(folder: Path, rows: list[dict[str, Any]], **settings: Any) -> Manifest:
    columns = sorted(rows[0])
    table = pa.table({name: pa.array([row[name] for row in rows], pa.large_string()) for name in columns})
    keys = pa.array([f"k{n}" for n in range(len(rows))], pa.large_string())
    return Manifest(table, keys, folder, tuple(columns), **settings)


def sight_of(
    manifest: Manifest, read: Callable[[SourceFile], object], *, checksum: bool = False, at: int = 0
) -> Sight:
    """What is recorded of a row whose files were all found, and read by this."""
    columns = [*manifest.columns]
    sighter = make_sighter(manifest, columns, allow_outside=False, checksum=checksum)
    sighter = pickle.loads(pickle.dumps(sighter))
    (row,) = manifest.block([at], manifest.digests(columns, np.array([at]))).rows()
    row.found = sighter.found()
    maker = FieldsMaker({}, str(manifest.base_path))
    for column in columns:
        if row.values[column] is not None:
            file = maker._resolve(row, row.values[column])
            read(file)
            if file.is_unchanged:
                row.found.confirm(row.values[column])
    return sight(sighter, row)


def sight(sighter: Sighter, row: Row) -> Sight:
    assert row.found is not None
    (found,) = sighter.sights([row], row.found)
    return found


def scan_of(manifest: Manifest, *, checksum: bool = False, at: int = 0) -> Sight:
    states = scan_rows(manifest, manifest.columns, allow_outside=False, checksum=checksum, content_rows=None)
    return (
        states.paths[at],
        int(states.sizes[at]),
        int(states.mtimes_ns[at]),
        int(states.fingerprints[at]),
        bool(states.by_content[at]),
    )


def whole(file: SourceFile) -> None:
    """As decoders read."""
    if file.suffix != "/":
        file.read_bytes(Limits())


def nothing(file: SourceFile) -> None:
    """As whoever reads in another way: nobody has looked after it was read."""


PLACES = ("a.wav", "b.npy", "sub/c", "series", "pair.hdr", "pair.img", "link")


@given(
    cells=st.lists(st.one_of(st.none(), st.sampled_from(PLACES)), min_size=1, max_size=3),
    ages=st.lists(st.sampled_from([0.0, 1.9, 2.1, 500.0]), min_size=8, max_size=8),
    checksum=st.booleans(),
    reader=st.sampled_from([whole, nothing]),
)
def test_a_sight_is_what_a_scan_finds(
    tmp_path_factory: pytest.TempPathFactory,
    cells: list[str | None],
    ages: list[float],
    checksum: bool,
    reader: Any,
) -> None:
    folder = tmp_path_factory.mktemp("sight")
    names = ("a.wav", "b.npy", "sub/c", "series/1", "series/2", "pair.hdr", "pair.img", "target")
    for number, (name, age_s) in enumerate(zip(names, ages, strict=True)):
        write(folder / name, bytes(number + 1), age_s)
    (folder / "link").symlink_to("target")
    manifest = manifest_of(folder, [{f"c{n}": cell for n, cell in enumerate(cells)}])
    found = scan_of(manifest, checksum=checksum)
    assert sight_of(manifest, reader, checksum=checksum) == found
    assert found[3] != 0


@pytest.mark.parametrize("age_s", [1, 500])
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_what_changes_while_it_is_read_is_read_again_next_time(
    tmp_path: Path, place: str, checksum: bool, age_s: float
) -> None:
    for name in ("a.wav", "b.npy", "sub/c", "series/1", "series/2", "pair.hdr", "pair.img", "target"):
        write(tmp_path / name, b"data", age_s)
    (tmp_path / "link").symlink_to("target")
    changed = {"series": "series/2", "pair.hdr": "pair.img", "pair.img": "pair.hdr", "link": "target"}
    target = tmp_path / changed.get(place, place)
    manifest = manifest_of(tmp_path, [{"x": place}])
    for change in ({"data": b"longer"}, {"age_s": age_s - 0.5}):

        def read(file: SourceFile, change: dict[str, Any] = change) -> None:
            write(target, **{"age_s": age_s, **change})

        assert sight_of(manifest, read, checksum=checksum)[3] == 0
        write(target, b"data", age_s)
        assert sight_of(manifest, nothing, checksum=checksum)[3] != 0


def test_what_is_gone_when_it_was_read_is_looked_for_next_time(tmp_path: Path) -> None:
    write(tmp_path / "a")
    manifest = manifest_of(tmp_path, [{"x": "a"}])
    assert sight_of(manifest, lambda file: (tmp_path / "a").unlink())[3] == 0


def test_changes_that_cancel_out_are_seen(tmp_path: Path) -> None:
    """One file of a row grows by what the other loses; the newest time of the row stays."""
    write(tmp_path / "a", b"12345", 500)
    write(tmp_path / "b", b"123", 400)
    manifest = manifest_of(tmp_path, [{"x": "a", "y": "b"}])

    def read(file: SourceFile) -> None:
        if file.name == "b":
            write(tmp_path / "a", b"1234", 500)
            write(tmp_path / "b", b"1234", 400)

    assert sight_of(manifest, nothing)[3] != 0
    assert sight_of(manifest, read)[3] == 0


def test_a_file_is_hashed_before_it_is_read_while_it_may_change_under_its_time(tmp_path: Path) -> None:
    """It changes while it is read, with the same size and time: the next scan sees another content."""
    write(tmp_path / "a", b"one", age_s=1)
    manifest = manifest_of(tmp_path, [{"x": "a"}])
    before = scan_of(manifest)
    found = sight_of(manifest, lambda file: write(tmp_path / "a", b"two", age_s=1))
    assert found == before
    assert found[4]
    assert scan_of(manifest)[3] != found[3]


def test_one_look_is_enough_where_all_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a", b"one")
    manifest = manifest_of(tmp_path, [{"x": "a"}])
    expected = scan_of(manifest)
    monkeypatch.setattr("flatout.source.sight.is_as_found", lambda *_: pytest.fail("looked at once more"))
    assert sight_of(manifest, whole) == expected


def test_a_file_that_changes_before_its_last_byte_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a", b"one")
    manifest = manifest_of(tmp_path, [{"x": "a"}])
    read = files._read

    def changing(descriptor: int, size: int) -> bytes:
        found = read(descriptor, size)
        write(tmp_path / "a", b"two", age_s=999)
        return found

    monkeypatch.setattr(files, "_read", changing)
    assert sight_of(manifest, whole)[3] == 0


@pytest.mark.parametrize("changes", [False, True])
def test_two_rows_of_one_file_that_changes_in_between(tmp_path: Path, changes: bool) -> None:
    """And then back: the second row has read something else."""
    write(tmp_path / "a", b"one")
    manifest = manifest_of(tmp_path, [{"x": "a"}, {"x": "a"}])
    sighter = make_sighter(manifest, ["x"], allow_outside=False, checksum=False)
    maker = FieldsMaker({"x": ArrayField()}, str(tmp_path))
    first, second = manifest.block([0, 1]).rows()
    first.found = second.found = sighter.found()
    maker._resolve(first, "a")
    if changes:
        write(tmp_path / "a", b"two", age_s=900)
    maker._resolve(second, "a")
    write(tmp_path / "a", b"one")
    assert [bool(sight(sighter, row)[3]) for row in (first, second)] == [not changes] * 2


def test_members_of_a_tar(tmp_path: Path) -> None:
    write(tmp_path / "audio.tar", b"headONEheadTWO")
    members = [
        SourceFile(tmp_path / "audio.tar", "one.npy", 4, 3),
        SourceFile(tmp_path / "audio.tar", "two.npy", 11, 3),
    ]
    manifest = manifest_of(tmp_path, [{"x": "one"}, {"x": "two"}])
    sighter = make_sighter(manifest, ["x"], allow_outside=False, checksum=False)
    expected = look.Looker(str(tmp_path), allow_outside=False)
    for member in members:
        row = Row("k", {"x": member}, 7, found=sighter.found())
        row.found.note(member, str(member.place), os.stat(member.place))  # type: ignore[union-attr]  # noqa: PTH116
        files_of_row = expected.at((member,))
        assert sight(sighter, row) == (
            f"{tmp_path / 'audio.tar'}:{member.name}",
            3,
            files_of_row.mtime_ns,
            files_of_row.fingerprint(7),
            False,
        )
        write(tmp_path / "audio.tar", b"headONEheadTWO", age_s=900)
        assert sight(sighter, row)[3] == 0
        write(tmp_path / "audio.tar", b"headONEheadTWO")


def test_times_of_cycles_are_no_files(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "cycles.csv")
    rows = [{"x": "a", "y": "0.1 0.9 1.7"}, {"x": "a", "y": "cycles.csv"}]
    manifest = manifest_of(tmp_path, rows, cycle_columns=("y",))
    sighter = make_sighter(manifest, ["x", "y"], allow_outside=False, checksum=False)
    for at, size in ((0, 4), (1, 8)):
        (row,) = manifest.block([at], manifest.digests(["x", "y"], np.array([at]))).rows()
        row.found = sighter.found()
        assert sight(sighter, row) == scan_of(manifest, at=at)
        assert sight(sighter, row)[1] == size


def test_rows_without_files_are_known_by_their_values(tmp_path: Path) -> None:
    table = pa.table({"label": ["a", "b", "a"]})
    manifest = Manifest(table, pa.array(["k", "l", "m"], pa.large_string()), tmp_path, ())
    sighter = make_sighter(manifest, ["label"], allow_outside=False, checksum=False)
    rows = manifest.block([0, 1, 2], manifest.digests(["label"])).rows()
    for at, row in enumerate(rows):
        row.found = sighter.found()
        states = scan_rows(manifest, ["label"], allow_outside=False, checksum=False, content_rows=None)
        assert sight(sighter, row) == ("", 0, 0, int(states.fingerprints[at]), False)


def test_makers_note_what_they_read_before_they_read_it(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    write(tmp_path / "a.npy", (tmp_path / "a.npy").read_bytes())
    manifest = manifest_of(tmp_path, [{"file": "a.npy"}])
    sighter = make_sighter(manifest, ["file"], allow_outside=False, checksum=False)
    maker = FieldsMaker({"x": ArrayField(column="file")}, str(tmp_path))
    (row,) = manifest.block([0], manifest.digests(["file"])).rows()
    row.found = sighter.found()
    maker.make(row)
    assert row.found.of("a.npy") == (str(tmp_path / "a.npy"), 152, NOW_NS - 1000 * 10**9)
    assert sight(sighter, row) == scan_of(manifest)
    maker.make(Row("k", {"file": "a.npy"}))  # nobody wants to know


@pytest.mark.parametrize("cell", ["a", "absent", SourceFile("tar", "member", 1, 2)])
def test_where_anybody_may_read_all_is_noted_first(tmp_path: Path, cell: Any) -> None:
    """What could not be noted may have been read all the same, so it matches nothing."""
    write(tmp_path / "a", b"one", age_s=1)
    write(tmp_path / "tar", b"tarred")
    cell = replace(cell, place=tmp_path / "tar") if isinstance(cell, SourceFile) else cell
    row = Row("k", {"x": cell}, 7)
    for is_early in (True, False):
        sighter = Sighter(look.Looker(str(tmp_path), allow_outside=False), ("x",), is_early=is_early)
        row.found = sighter.found()
        if is_early:
            sighter.note(row, row.found)
        expected = look.Looker(str(tmp_path), allow_outside=False, by_content=cell == "a").at((cell,))
        assert sight(sighter, row)[3] == expected.fingerprint(7)
        if is_early:
            write(tmp_path / "a", b"longer", age_s=1)
            write(tmp_path / "tar", b"longer tar")
            assert sight(sighter, row)[3] == 0
            write(tmp_path / "a", b"one", age_s=1)
    sighter = replace(sighter, is_early=True)
    row.found = sighter.found()
    assert sight(sighter, row)[3] == 0  # it may have been read, and nobody knows what it was then


def test_sights_of_a_task_become_columns() -> None:
    sights = Sights.of([("a", 1, 2, 2**64 - 3, True), NO_SIGHT])
    assert sights.fingerprints.tolist() == [2**64 - 3, 0]
    assert (sights.sizes.tolist(), sights.mtimes_ns.tolist()) == ([1, -1], [2, 0])
    assert (sights.paths, sights.by_content.tolist()) == (["a", ""], [True, False])
    assert len(Sights.of([]).paths) == Sights.of([]).num_moved == 0


def test_a_tar_that_changed_after_a_member_was_read_is_read_again(tmp_path: Path) -> None:
    write(tmp_path / "audio.tar", b"headONEheadTWO")
    sighter = Sighter(look.Looker(str(tmp_path), allow_outside=False), ("x",))
    maker = FieldsMaker({"x": ArrayField()}, str(tmp_path))
    fingerprints = []
    for changes in (False, True):
        row = Row("k", {"x": SourceFile(tmp_path / "audio.tar", "one.npy", 4, 3)}, 7, found=sighter.found())
        with pytest.raises(SampleError):  # three bytes are no array, but they were read
            maker.make(row)
        if changes:
            write(tmp_path / "audio.tar", b"headTWOheadONE", age_s=900)
        fingerprints.append(sight(sighter, row)[3])
    assert fingerprints[0] != 0
    assert fingerprints[1] == 0


def test_a_file_that_changes_just_before_it_is_hashed_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a row's files is too new for its time to count, so the other is hashed, too, after it was read."""
    write(tmp_path / "a", b"one")
    write(tmp_path / "b", b"two", age_s=0)
    sighter = Sighter(look.Looker(str(tmp_path), allow_outside=False), ("x", "y"))
    row = Row("k", {"x": "a", "y": "b"}, 7)
    see, is_changing = look.Looker.see, False

    def change_and_see(looker: look.Looker, cell: Any) -> Any:
        if is_changing and cell == "a" and looker.by_content:
            write(tmp_path / "a", b"three", age_s=900)
        return see(looker, cell)

    monkeypatch.setattr(look.Looker, "see", change_and_see)
    fingerprints = []
    for changes in (False, True):
        is_changing = changes
        row.found = sighter.found()
        sighter.note(row, row.found)
        fingerprints.append(sight(sighter, row)[3])
    assert fingerprints[0] != 0
    assert fingerprints[1] == 0
