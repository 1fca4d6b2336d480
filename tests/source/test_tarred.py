"""Tarred audio: members are found in place, odd tars are refused, missing members fail one by one."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import ManifestError, SampleError
from flatout.source import tarred
from flatout.source.files import SourceFile
from flatout.source.look import Looker
from flatout.source.tarred import expand_tars, index_tars
from flatout.types import Limits


def make_tar(path: Path, members: dict[str, bytes], format: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def read(
    tars: list[Path], names: list[str | None], shards: list[int | None] | None = None
) -> list[bytes | str]:
    columns: dict[str, object] = {"audio_filepath": pa.array(names, pa.large_string())}
    if shards is not None:
        columns["shard_id"] = shards
    index, _ = index_tars(pa.table(columns), "audio_filepath", tars)
    found: list[bytes | str] = []
    for i, name in enumerate(names):
        try:
            found.append(index.file_of(i, name or "").read_bytes(Limits()))
        except SampleError as error:
            found.append(error.stage)
    return found


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_read_in_place(tmp_path: Path, format: int) -> None:
    a = make_tar(
        tmp_path / "audio_0.tar", {"x.wav": b"one", "empty.wav": b"", "d/ü.wav": b"two" * 1000}, format
    )
    b = make_tar(tmp_path / "audio_1.tar", {"./y.wav": b"three", "n" * 90 + ".flac": b"four"}, format)
    names = ["y.wav", "d/ü.wav", "x.wav", "empty.wav", "n" * 90 + ".flac"]
    assert read([a, b], names) == [b"three", b"two" * 1000, b"one", b"", b"four"]


def test_a_member_keeps_its_name_and_survives_a_pickle(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "a.tar", {"x.flac": b"data"})
    index, notes = index_tars(pa.table({"f": ["x.flac"]}), "f", [tar])
    file = index.file_of(0, "x.flac")
    assert file == SourceFile(tar, "x.flac", 512, 4)
    assert file.suffix == ".flac"
    assert pickle.loads(pickle.dumps(file)) == file
    assert notes == []


@pytest.mark.parametrize(("size", "time_ns"), [(1, 0), (0, 1)])
def test_a_member_of_another_tar_is_refused(tmp_path: Path, size: int, time_ns: int) -> None:
    """Whoever asks for it, be it a moment before the read: another member may stand at its place."""
    tar = make_tar(tmp_path / "a.tar", {"x.raw": b"data"})
    index, _ = index_tars(pa.table({"f": ["x.raw"]}), "f", [tar])
    file, state = index.file_of(0, "x.raw"), tar.stat()
    assert isinstance(file, SourceFile)
    assert file.read_bytes(Limits()) == b"data"
    tar.write_bytes(tar.read_bytes() + bytes(size))
    os.utime(tar, ns=(0, state.st_mtime_ns + time_ns))
    for look in (file.stat, lambda: file.read_bytes(Limits()), lambda: Looker("", False).see(file)):
        with pytest.raises(SampleError, match="was changed after its members were found; run prepare again"):
            look()


def test_a_tar_that_is_replaced_while_it_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tar, other = (
        make_tar(tmp_path / "a.tar", {"x": b"data"}),
        make_tar(tmp_path / "b.tar", {"y": b"else" * 999}),
    )
    real = tarred._scan_all

    def scan(tars: Any) -> Any:
        found = real(tars)
        other.replace(tar)
        return found

    monkeypatch.setattr(tarred, "_scan_all", scan)
    index, _ = index_tars(pa.table({"f": ["x"]}), "f", [tar])
    file = index.file_of(0, "x")
    assert isinstance(file, SourceFile)
    with pytest.raises(SampleError, match="was changed after its members were found"):
        file.read_bytes(Limits())


def test_the_shard_decides_between_equal_names(tmp_path: Path) -> None:
    tars = [
        make_tar(tmp_path / f"audio_{i}.tar", {"x.wav": b"from %d" % i, f"own{i}.wav": b"o"})
        for i in (0, 1, 12)
    ]
    assert read(tars, ["x.wav", "x.wav", "x.wav"], [1, 12, 0]) == [b"from 1", b"from 12", b"from 0"]
    assert read(tars, ["x.wav", "own1.wav"], [None, 12]) == ["find", b"o"]
    assert read(tars, ["x.wav"]) == ["find"]


def test_segments_of_one_file_and_bare_names(tmp_path: Path) -> None:
    tar = make_tar(
        tmp_path / "a.tar", {"deep/in/x.wav": b"x", "y.wav": b"y", "z-sub1.wav": b"z1", "z.wav": b"z"}
    )
    names: list[str | None] = ["x.wav", "other/y-sub12.wav", "z-sub1.wav", "z-sub2.wav", "y-sub.wav"]
    assert read([tar], names) == [b"x", b"y", b"z1", b"z", "find"]


@pytest.mark.parametrize(
    "name", ["no.wav", "../../etc/passwd", "/etc/passwd", "a\0b", "n" * 3000, "", "audio_0.tar"]
)
def test_a_missing_member_fails_by_name(tmp_path: Path, name: str) -> None:
    tar = make_tar(tmp_path / "audio_0.tar", {"x.wav": b"x"})
    index, notes = index_tars(pa.table({"f": [name, "x.wav"]}), "f", [tar])
    with pytest.raises(SampleError, match="no member") as caught:
        index.file_of(0, name).read_bytes(Limits())
    assert caught.value.stage == "find"
    assert index.file_of(1, "x.wav").read_bytes(Limits()) == b"x"
    assert "1 rows name no member" in notes[0]


def test_the_reason_is_a_sentence_and_the_path_is_the_tars(tmp_path: Path) -> None:
    tars = [make_tar(tmp_path / f"audio_{i}.tar", {"d/x.wav": b"x", f"{i}/y.wav": b"y"}) for i in (0, 1)]
    reasons = {
        "a3.wav": "no member 'a3.wav' in 2 tars (audio_0.tar, ...); add the tar that has it to "
        "tarred_audio_filepaths",
        "d/x.wav": "several members 'x.wav' in 2 tars (audio_0.tar, ...); give the row its shard_id, or the "
        "member's folder",
    }
    reasons["y.wav"] = reasons["d/x.wav"].replace("x.wav", "y.wav")
    index, _ = index_tars(pa.table({"f": [*reasons]}), "f", tars)
    for at, (name, reason) in enumerate(reasons.items()):
        file = pickle.loads(pickle.dumps(index.file_of(at, name)))
        assert file.path == tars[0]
        for look in (file.stat, lambda file=file: file.read_bytes(Limits())):
            with pytest.raises(SampleError) as caught:
                look()
            assert (caught.value.stage, caught.value.reason) == ("find", reason)
    (alone, _) = index_tars(pa.table({"f": ["a3.wav"]}), "f", tars[:1])
    with pytest.raises(SampleError, match=r"^find: no member 'a3\.wav' in audio_0\.tar; add"):
        alone.file_of(0, "a3.wav").stat()


def test_links_devices_and_sparse_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        kinds = {
            "link.wav": tarfile.SYMTYPE,
            "hard.wav": tarfile.LNKTYPE,
            "dev.wav": tarfile.CHRTYPE,
            "fifo.wav": tarfile.FIFOTYPE,
            "sparse.wav": tarfile.GNUTYPE_SPARSE,
            "folder": tarfile.DIRTYPE,
        }
        for name, kind in kinds.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        info = tarfile.TarInfo("good.wav")
        info.size = 4
        tar.addfile(info, io.BytesIO(b"good"))
    index, notes = index_tars(pa.table({"f": [*kinds, "good.wav"]}), "f", [path])
    assert index.tar_of.tolist() == [-1] * 6 + [0]
    assert "5 members are links, sparse or special" in notes[0]


@pytest.mark.parametrize("content", [b"", b"x" * 2000, b"\x1f\x8b" + b"\0" * 600])
def test_what_is_no_tar_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(content)
    with pytest.raises(ManifestError, match="not an uncompressed tar"):
        index_tars(pa.table({"f": ["x"]}), "f", [path])


def test_a_compressed_tar_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("x.wav"))
    with pytest.raises(ManifestError, match="not an uncompressed tar"):
        index_tars(pa.table({"f": ["x"]}), "f", [tmp_path / "a.tar"])


def test_a_cut_tar_keeps_its_whole_members(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "a.tar", {"x.wav": b"x" * 600, "y.wav": b"y" * 600})
    path.write_bytes(path.read_bytes()[: 512 + 1024 + 512 + 100])
    index, notes = index_tars(pa.table({"f": ["x.wav", "y.wav"]}), "f", [path])
    assert index.tar_of.tolist() == [0, -1]
    assert "damaged after 1 members" in notes[0]


def test_a_header_that_leads_backwards_ends_the_scan(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "a.tar", {"x.wav": b"x", "y.wav": b"y"})
    data = bytearray(path.read_bytes())
    header = data[1024:1536]
    header[124:136] = b"\xff" * 8 + (-1024 % 2**32).to_bytes(4, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    data[1024:1536] = header
    path.write_bytes(data)
    index, notes = index_tars(pa.table({"f": ["x.wav"]}), "f", [path])
    assert index.tar_of.tolist() == [0]
    assert "damaged" in notes[0]


@given(data=st.data())
def test_flipped_headers_never_escape_as_other_errors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = make_tar(
        tmp_path_factory.mktemp("tar") / "a.tar", {"x.wav": b"x" * 100, "y.wav": b"y"}, tarfile.PAX_FORMAT
    )
    content = bytearray(path.read_bytes()[:2048])
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, 2047))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        index, _ = index_tars(pa.table({"f": ["x.wav", "y.wav"]}), "f", [path])
    except ManifestError:
        return
    found = index.tar_of >= 0
    assert (index.offset[found] + index.size[found] <= len(content)).all()
    assert (index.size[found] >= 0).all()


def test_rows_can_be_taken(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "a.tar", {"x": b"x", "y": b"yy"})
    index, _ = index_tars(pa.table({"f": ["x", "no", "y"]}), "f", [tar])
    taken = index.take(np.array([2, 1]))
    assert taken.file_of(0, "y").read_bytes(Limits()) == b"yy"
    assert taken.tar_of.tolist() == [0, -1]


def test_ranges_are_expanded(tmp_path: Path) -> None:
    for i in range(4):
        make_tar(tmp_path / f"audio_{i}.tar", {"x": b""})
        make_tar(tmp_path / f"a{i:02d}_b{i % 2}.tar", {"x": b""})
    wanted = [tmp_path / f"audio_{i}.tar" for i in range(4)]
    for pattern in (
        "audio_{0..3}.tar",
        "audio__OP_0..3_CL_.tar",
        "audio_[0..3].tar",
        "audio_(0..3).tar",
        "audio_<0..3>.tar",
        "audio_{0,1,2,3}.tar",
        str(tmp_path / "audio_{0..3}.tar"),
    ):
        assert expand_tars(pattern, tmp_path) == wanted
    assert expand_tars(["audio_{3..2}.tar", "audio_0.tar"], tmp_path) == [wanted[3], wanted[2], wanted[0]]
    assert expand_tars("a{02..02}_b{0..0}.tar", tmp_path) == [tmp_path / "a02_b0.tar"]


def test_relative_tars_may_start_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar = make_tar(tmp_path / "a.tar", {"x": b""})
    monkeypatch.chdir(tmp_path)
    assert expand_tars("a.tar", tmp_path / "elsewhere") == [tar]


def test_missing_tars_and_endless_ranges_are_refused(tmp_path: Path) -> None:
    make_tar(tmp_path / "audio_0.tar", {"x": b""})
    with pytest.raises(ManifestError, match=r"2 of 3 are missing: .*audio_1\.tar"):
        expand_tars("audio_{0..2}.tar", tmp_path)
    for pattern in ("a_{0..999999999}.tar", "a_{0..9999}_{0..9999}.tar", "{0..99}" * 9):
        with pytest.raises(ManifestError, match="more than"):
            expand_tars(pattern, tmp_path)
    with pytest.raises(ManifestError, match="is empty"):
        expand_tars([], tmp_path)


def test_no_member_at_all(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "a.tar", {"x": b""})
    with tarfile.open(tar, "w") as empty:
        empty.addfile(tarfile.TarInfo("folder/"))
    index, _ = index_tars(pa.table({"f": ["x", None]}), "f", [tar])
    assert index.tar_of.tolist() == [-1, -1]
    assert tarred.MAX_TARS >= 10_000
