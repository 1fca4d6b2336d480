"""Writing past the page cache: the same bytes as ever, whatever the disk says to it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128

from flatout.store import past_cache, shard_writer
from flatout.store.past_cache import ALIGNED_BYTES, BLOCK_BYTES, PIECE_BYTES, ask_for_direct, in_pieces
from flatout.store.shard_file import write_hashed
from flatout.store.shard_writer import ShardWriter
from flatout.types import FieldSpec

DIRECT = getattr(os, "O_DIRECT", 0)
SIZES = [0, 1, BLOCK_BYTES, BLOCK_BYTES + 1, PIECE_BYTES - 1, PIECE_BYTES, 2 * PIECE_BYTES + 12_345]


def some_bytes(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def is_direct(descriptor: int) -> bool:
    import fcntl

    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & DIRECT)


@pytest.fixture
def direct_folder(tmp_path: Path) -> Path:
    """A folder on a disk that takes writes past the cache."""
    descriptor = os.open(tmp_path / "probe", os.O_WRONLY | os.O_CREAT)
    try:
        if not ask_for_direct(descriptor):
            pytest.skip("this file system has no direct writes")
    finally:
        os.close(descriptor)
    return tmp_path


def unaligned(data: bytes) -> memoryview:
    """The data where no block begins, not even by chance: what lies aligned is not copied."""
    memory = np.empty(len(data) + 2 * BLOCK_BYTES, np.uint8)
    start = -memory.ctypes.data % BLOCK_BYTES + 1
    memory[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return memory[start : start + len(data)].data


@given(sizes=st.lists(st.sampled_from([0, 1, 4095, 4096, 100_000, PIECE_BYTES, PIECE_BYTES + 1]), max_size=9))
def test_pieces_are_the_same_bytes_from_aligned_memory(sizes: list[int]) -> None:
    buffers = [unaligned(bytes([number + 1]) * size) for number, size in enumerate(sizes)]
    found, lengths = b"", []
    for piece in in_pieces(buffers):
        assert np.frombuffer(piece, np.uint8).ctypes.data % BLOCK_BYTES == 0
        found += bytes(piece)
        lengths.append(len(piece))
    assert found == b"".join(buffers)
    assert all(length == PIECE_BYTES for length in lengths[:-1])


def test_what_is_large_and_aligned_is_written_by_few_calls() -> None:
    memory = np.zeros(2 * ALIGNED_BYTES + 3 * BLOCK_BYTES + 5 + BLOCK_BYTES, np.uint8)
    start = -memory.ctypes.data % BLOCK_BYTES
    buffer = memory[start : start + 2 * ALIGNED_BYTES + 3 * BLOCK_BYTES + 5]
    lengths = [len(piece) for piece in in_pieces([buffer.data])]
    assert lengths == [ALIGNED_BYTES, ALIGNED_BYTES, 3 * BLOCK_BYTES, 5]


@pytest.mark.parametrize("size", SIZES)
def test_a_file_is_what_it_would_be_through_the_cache(tmp_path: Path, size: int) -> None:
    data = some_bytes(size)
    buffers = [memoryview(data[:100]), memoryview(data[100:])]
    digest = write_hashed(tmp_path / "a", buffers, past_cache=True)
    assert digest == xxh3_128(data).hexdigest()
    assert (tmp_path / "a").read_bytes() == data
    with pytest.raises(FileExistsError):
        write_hashed(tmp_path / "a", buffers, past_cache=True)


@pytest.mark.skipif(sys.platform != "linux", reason="direct writes are Linux's")
def test_nothing_of_it_is_in_the_cache(direct_folder: Path) -> None:
    data = some_bytes(4 * PIECE_BYTES + 5)
    shares = {}
    for is_past in (False, True):
        path = direct_folder / str(is_past)
        write_hashed(path, [memoryview(data)], past_cache=is_past)
        shares[is_past] = resident_share(path)
    assert shares[False] > 0.9
    assert shares[True] < 0.1  # its last, partial block


def resident_share(path: Path) -> float:
    """Share of a file's pages that the system holds in memory."""
    with open(path, "rb+") as file, mmap.mmap(file.fileno(), 0) as mapped:
        found = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapped)
        address = ctypes.c_void_p(ctypes.addressof(first))
        assert ctypes.CDLL(None).mincore(address, ctypes.c_size_t(len(mapped)), found) == 0
        del first
        return sum(flag & 1 for flag in found) / len(found)


def test_writes_that_stop_anywhere_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, write = some_bytes(PIECE_BYTES + 7), os.write
    monkeypatch.setattr(os, "write", lambda descriptor, view: write(descriptor, view[:70_001]))
    write_hashed(tmp_path / "a", [memoryview(data)], past_cache=True)
    assert (tmp_path / "a").read_bytes() == data


@pytest.mark.skipif(sys.platform != "linux", reason="direct writes are Linux's")
def test_a_disk_that_refuses_only_the_write(direct_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some network file systems do: the flag is taken, the write is not."""
    data, write = some_bytes(3 * PIECE_BYTES + 9), os.write
    refused: list[int] = []

    def refusing(descriptor: int, view: memoryview) -> int:
        if is_direct(descriptor):
            refused.append(len(view))
            raise OSError(errno.EINVAL, "no direct writes")
        return write(descriptor, view)

    monkeypatch.setattr(os, "write", refusing)
    write_hashed(direct_folder / "a", [memoryview(data)], past_cache=True)
    assert (direct_folder / "a").read_bytes() == data
    assert refused == [PIECE_BYTES], "asked once, then never again"


def a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardWriter:
    """One of 6 MiB, which counts as a large store."""
    monkeypatch.setattr(shard_writer, "PAST_CACHE_BYTES", PIECE_BYTES)
    writer = ShardWriter((FieldSpec("x", "array", "uint8", (6 << 20,)),))
    writer.append(writer.encode("k", 1, -1, {"x": np.frombuffer(some_bytes(6 << 20), np.uint8)}))
    return writer


def test_a_shard_is_the_same_either_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = a_shard(tmp_path, monkeypatch).put(tmp_path, 0).settle()
    past = a_shard(tmp_path, monkeypatch).put(tmp_path, 0, planned_bytes=6 << 20).settle()
    assert past == usual
    assert [path.name for path in tmp_path.iterdir()] == [usual.file]
    assert xxh3_128((tmp_path / usual.file).read_bytes()).hexdigest() == usual.xxh3


@pytest.fixture
def went_past(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each shard that is written was to go past the cache."""
    noted: list[bool] = []

    def noting(*arguments: Any, **options: Any) -> str:
        noted.append(options["past_cache"])
        return write_hashed(*arguments, **options)

    monkeypatch.setattr(shard_writer, "write_hashed", noting)
    return noted


@pytest.mark.parametrize(
    ("compression", "num_planned", "is_past"),
    [("none", 20, False), ("none", 53, False), ("none", 54, True), ("zstd", 54, False), ("zstd", 10**6, True)],
)
def test_the_size_of_the_run_decides_not_that_of_a_shard(
    tmp_path: Path, went_past: list[bool], compression: str, num_planned: int, is_past: bool
) -> None:
    """Few large samples are a small store; samples that are compressed count as they are stored."""
    num_bytes = 20_000_000
    spec = FieldSpec("x", "array", "uint8", (num_bytes,), compression=compression)
    writer = ShardWriter((spec,))
    writer.append(writer.encode("k", 1, -1, {"x": np.zeros(num_bytes, np.uint8)}))
    writer.put(tmp_path, 0, planned_bytes=num_planned * num_bytes)
    assert went_past == [is_past]


@pytest.mark.parametrize(("least", "is_past"), [(1 << 30, False), (1, True)])
def test_a_prepare_knows_how_much_it_will_write(
    source: Any, monkeypatch: pytest.MonkeyPatch, went_past: list[bool], least: int, is_past: bool
) -> None:
    monkeypatch.setattr(shard_writer, "PAST_CACHE_BYTES", least)
    source.prepare(num_workers=0)
    assert set(went_past) == {is_past}


@pytest.mark.parametrize(("kind", "is_past"), [("ext4", True), ("nfs4", False), ("fuse.s3fs", False)])
def test_no_direct_writes_over_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, went_past: list[bool], kind: str, is_past: bool
) -> None:
    monkeypatch.setattr(past_cache, "file_system_of", lambda folder: kind)
    a_shard(tmp_path, monkeypatch).put(tmp_path, 0, planned_bytes=6 << 20)
    assert went_past == [is_past]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_disk_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    writer, write, calls = a_shard(tmp_path, monkeypatch), os.write, iter(range(100))

    def failing(descriptor: int, view: memoryview) -> int:
        if next(calls) == 3:
            raise OSError(number, os.strerror(number))
        return write(descriptor, view)

    monkeypatch.setattr(os, "write", failing)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        writer.put(tmp_path, 0, planned_bytes=6 << 20)
    assert caught.value.errno == number
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 of 12 MiB, of which some 4 are free: direct writes meet its end for real."""
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with open(image, "wb") as file:
        file.truncate(12 << 20)
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True, capture_output=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.decode().strip()}")
    usage = shutil.disk_usage(disk)
    (disk / "ballast").write_bytes(bytes(usage.free - (4 << 20)))
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_disk_that_is_really_full(full_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        a_shard(full_disk, monkeypatch).put(full_disk, 0, planned_bytes=6 << 20)
    assert caught.value.errno == errno.ENOSPC
    assert {path.name for path in full_disk.iterdir()} <= {"ballast", "lost+found"}


@pytest.mark.skipif(sys.platform != "linux", reason="file size limits as Linux has them")
def test_a_limit_in_the_middle_of_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel cuts the write short there and fails the next: as with a quota."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PIECE_BYTES + 5_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            a_shard(tmp_path, monkeypatch).put(tmp_path, 0, planned_bytes=6 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []
