"""Files reach the disk whole: partial writes, failures half-way, leftovers."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.store import files
from flatout.store.files import remove_leftovers, sync_folder, temporary_beside, write_all, write_durable


@given(counts=st.lists(st.integers(1, 7), min_size=1), data=st.binary(max_size=60))
def test_writes_every_byte_however_few_the_kernel_takes_at_a_time(counts: list[int], data: bytes) -> None:
    written = bytearray()
    calls = iter(counts)

    def short_write(descriptor: int, view: memoryview) -> int:
        taken = bytes(view[: next(calls, 3)])
        written.extend(taken)
        return len(taken)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", short_write)
        write_all(7, data)
    assert bytes(written) == data


def test_writes_arrays_of_any_shape_as_their_bytes(tmp_path: Path) -> None:
    array = np.arange(24, dtype="<f4").reshape(2, 3, 4)
    write_durable(tmp_path / "file", [array, b"end", np.empty(0, np.uint8)])
    assert (tmp_path / "file").read_bytes() == array.tobytes() + b"end"


def test_replaces_a_file_only_when_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def chunks() -> Iterator[bytes]:
        yield b"half of the ne"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_durable(path, chunks())
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_syncs_the_file_before_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    rename = Path.replace
    monkeypatch.setattr(files, "sync_file", lambda descriptor: events.append("file"))
    monkeypatch.setattr(files, "sync_folder", lambda folder: events.append(f"folder {folder.name}"))
    monkeypatch.setattr(Path, "replace", lambda self, to: (events.append("rename"), rename(self, to))[1])
    write_durable(tmp_path / "file", [b"x"])
    assert events == ["file", "rename", f"folder {tmp_path.name}"]


def test_folders_are_not_synced_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "absent"
    with pytest.raises(FileNotFoundError):
        sync_folder(folder)
    monkeypatch.setattr(files.os, "name", "nt")
    sync_folder(folder)


@pytest.mark.parametrize("refusal", [None, errno.ENOTSUP, errno.EINVAL, errno.ENOTTY, errno.EIO])
def test_the_drive_itself_is_asked_on_macos_where_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int | None
) -> None:
    """F_FULLFSYNC, and fsync on file systems that do not know it; a drive that fails is an error."""
    calls: list[str] = []

    def control(descriptor: int, command: int) -> None:
        calls.append(f"control {command}")
        if refusal is not None:
            raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(files.sys, "platform", "darwin")
    monkeypatch.setitem(sys.modules, "fcntl", SimpleNamespace(F_FULLFSYNC=51, fcntl=control))
    monkeypatch.setattr(files.os, "fsync", lambda descriptor: calls.append("fsync"))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)) if refusal == errno.EIO else nullcontext():
        files.sync_file(7)
    assert calls == ["control 51"] + ["fsync"] * (refusal not in (None, errno.EIO))


def test_temporary_names_never_meet_and_are_found_as_leftovers(tmp_path: Path) -> None:
    names = {temporary_beside(tmp_path / "shard.h5") for _ in range(100)}
    assert len(names) == 100
    leftover = names.pop()
    leftover.write_bytes(b"half")
    (tmp_path / "shard.h5").write_bytes(b"whole")
    remove_leftovers(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["shard.h5"]
