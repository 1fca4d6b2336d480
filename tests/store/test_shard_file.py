"""The shard as a file: bytes in order, and what libhdf5 may not find in it."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128

from flatout.errors import StoreCorruptError
from flatout.store import shard_file
from flatout.store.shard_file import check_through_libhdf5, in_file_order, write_hashed
from flatout.store.shard_reader import ShardReader
from flatout.store.skeleton import Skeleton
from flatout.types import FieldSpec

FIELDS = (
    FieldSpec("x", "array", "float32", (3,)),
    FieldSpec("text", "text", "uint8", (None,)),
    FieldSpec("packed", "array", "int16", (4,), compression="gzip"),
)


@pytest.fixture
def shard(write_shard: Callable[..., ShardReader]) -> ShardReader:
    samples = [
        {"x": np.full(3, n, np.float32), "text": np.full(n, n, np.uint8), "packed": np.full(4, n, np.int16)}
        for n in range(4)
    ]
    return write_shard(FIELDS, samples)


def test_pieces_and_data_come_in_file_order_with_zeros_between() -> None:
    skeleton = Skeleton([(0, b"head"), (20, b"tail")], {}, {}, 30)
    data = {8: iter([np.array([1, 2], "<u2"), b"!"])}
    found = b"".join(in_file_order(skeleton, data))
    assert found == b"head" + bytes(4) + b"\1\0\2\0!" + bytes(7) + b"tail" + bytes(6)


def test_buffers_are_taken_one_at_a_time() -> None:
    alive: list[int] = []

    def buffers() -> Any:
        for number in range(5):
            alive.append(number)
            yield bytes([number])

    stream = in_file_order(Skeleton([], {}, {}, 5), {0: buffers()})
    next(stream)  # the hole before the first
    next(stream)
    assert alive == [0]


def test_pieces_never_overlap() -> None:
    with pytest.raises(AssertionError, match="overlap at 2"):
        list(in_file_order(Skeleton([(0, b"head"), (2, b"x")], {}, {}, 10), {}))


def test_hashes_what_it_writes(tmp_path: Path) -> None:
    digest = write_hashed(tmp_path / "a", [memoryview(b"one"), memoryview(b"two")])
    assert digest == xxh3_128(b"onetwo").hexdigest()
    assert (tmp_path / "a").read_bytes() == b"onetwo"
    with pytest.raises(FileExistsError):
        write_hashed(tmp_path / "a", [])
    unsafe = {write_hashed(tmp_path / name, [memoryview(b"x")], safe=False) for name in "bc"}
    assert len(unsafe) == 2


@given(
    sizes=st.lists(
        st.sampled_from([0, 1, 3, shard_file.SMALL_BYTES - 1, shard_file.SMALL_BYTES, 1 << 17]), max_size=9
    )
)
def test_small_buffers_are_written_together(sizes: list[int]) -> None:
    buffers = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    joined = [bytes(buffer) for buffer in shard_file._fewer(map(memoryview, buffers))]
    assert b"".join(joined) == b"".join(buffers)
    assert all(joined)
    large = [buffer for buffer in buffers if len(buffer) >= shard_file.SMALL_BYTES]
    assert len(joined) <= 2 * len(large) + 1 + sum(sizes) // shard_file.TOGETHER_BYTES


def test_a_good_shard_passes(shard: ShardReader) -> None:
    check_through_libhdf5(shard.path, FIELDS, shard.meta)


def add_external_link(file: Any, outside: Path) -> None:
    file["more"] = h5py.ExternalLink(str(outside), "/x")


def swap_for_external_link(file: Any, outside: Path) -> None:
    del file["x"]
    file["x"] = h5py.ExternalLink(str(outside), "/x")


def add_soft_link(file: Any, outside: Path) -> None:
    file["flatout/crc/more"] = h5py.SoftLink("/x")


def swap_for_soft_link(file: Any, outside: Path) -> None:
    file.move("x", "y")
    file["x"] = h5py.SoftLink("/y")


def add_external_storage(file: Any, outside: Path) -> None:
    del file["x"]
    file.create_dataset("x", (4, 3), "<f4", external=[(str(outside), 0, 48)])


def add_virtual(file: Any, outside: Path) -> None:
    del file["x"]
    layout = h5py.VirtualLayout((4, 3), "<f4")
    layout[:] = h5py.VirtualSource(str(outside), "x", (4, 3))
    file.create_virtual_dataset("x", layout)


def add_unlimited_virtual(file: Any, outside: Path) -> None:
    del file["x"]
    layout = h5py.VirtualLayout((4, 3), "<f4", maxshape=(None, 3))
    source = h5py.VirtualSource(str(outside), "x", (4, 3), maxshape=(None, 3))
    layout[: h5py.h5s.UNLIMITED] = source[: h5py.h5s.UNLIMITED]
    file.create_virtual_dataset("x", layout)


def hide_external_storage(file: Any, outside: Path) -> None:
    del file["packed"]  # the root gives a compressed dataset no place
    file.create_dataset("packed", (4, 4), "<i2", external=[(str(outside), 0, 32)])


def hide_virtual(file: Any, outside: Path) -> None:
    del file["packed"]
    layout = h5py.VirtualLayout((4, 4), "<i2")
    layout[:] = h5py.VirtualSource(str(outside), "x", (4, 4))
    file.create_virtual_dataset("packed", layout)


def use_another_filter(file: Any, outside: Path) -> None:
    del file["packed"]
    file.create_dataset("packed", data=np.zeros((4, 4), "<i2"), chunks=(1, 4), compression="lzf")


def use_shuffle(file: Any, outside: Path) -> None:
    del file["packed"]
    file.create_dataset("packed", data=np.zeros((4, 4), "<i2"), chunks=(1, 4), compression="gzip", shuffle=True)


def make_it_huge(file: Any, outside: Path) -> None:
    del file["x"]
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_LATE)
    space = h5py.h5s.create_simple((1 << 40, 1 << 20))
    h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, creation)


def add_dataset(file: Any, outside: Path) -> None:
    file["more"] = np.zeros(3)


def remove_dataset(file: Any, outside: Path) -> None:
    del file["text/values"]


def add_named_type(file: Any, outside: Path) -> None:
    file["kind"] = np.dtype("f8")


def add_cycle(file: Any, outside: Path) -> None:
    file["text/again"] = file["text"]


def add_references(file: Any, outside: Path) -> None:
    del file["x"]
    file.create_dataset("x", (4, 3), h5py.ref_dtype)


def change_dtype(file: Any, outside: Path) -> None:
    del file["x"]
    file.create_dataset("x", data=np.zeros((4, 3), ">f4"))


def change_rows(file: Any, outside: Path) -> None:
    del file["x"]
    file.create_dataset("x", data=np.zeros((5, 3), "<f4"))


HOSTILE = [
    add_external_link,
    swap_for_external_link,
    add_soft_link,
    swap_for_soft_link,
    add_external_storage,
    add_virtual,
    add_unlimited_virtual,
    hide_external_storage,
    hide_virtual,
    use_another_filter,
    use_shuffle,
    make_it_huge,
    add_dataset,
    remove_dataset,
    add_named_type,
    add_cycle,
    add_references,
    change_dtype,
    change_rows,
]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file that a hostile shard wants read."""
    path = tmp_path / "secret.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.ones((4, 3), "<f4")
    return path


@pytest.mark.parametrize("change", HOSTILE, ids=lambda change: change.__name__)
def test_a_hostile_shard_is_refused(shard: ShardReader, outside: Path, change: Callable[..., None]) -> None:
    with h5py.File(shard.path, "r+") as file:
        change(file, outside)
    with pytest.raises(StoreCorruptError):
        check_through_libhdf5(shard.path, FIELDS, shard.meta)


def test_a_dataset_that_claims_more_than_the_file_has_is_refused(shard: ShardReader) -> None:
    with h5py.File(shard.path, "r") as file:
        header = h5py.h5o.get_info(file["text/values"].id).addr
        size = struct.pack("<Q", file["text/values"].size)
    data = bytearray(shard.path.read_bytes())
    message = bytes(data[header : header + 300])
    assert message.count(size) >= 2  # its shape, and its bytes
    data[header : header + 300] = message.replace(size, struct.pack("<Q", 1 << 40))
    shard.path.write_bytes(bytes(data))
    with pytest.raises(StoreCorruptError, match=r"leaves the file|invalid dataset size"):
        check_through_libhdf5(shard.path, FIELDS, shard.meta)


def test_a_group_within_itself_is_not_followed(shard: ShardReader) -> None:
    with h5py.File(shard.path, "r+") as file:
        add_cycle(file, shard.path)
    with pytest.raises(StoreCorruptError, match="nested deeper"):
        check_through_libhdf5(shard.path, FIELDS, shard.meta)


@pytest.mark.parametrize("data", [b"", b"x" * 5000, b"\x89HDF\r\n\x1a\n" + b"\xff" * 5000])
def test_what_is_no_hdf5_is_refused(shard: ShardReader, data: bytes) -> None:
    shard.path.write_bytes(data)
    with pytest.raises(StoreCorruptError):
        check_through_libhdf5(shard.path, FIELDS, shard.meta)


def test_a_dataset_elsewhere_is_refused(shard: ShardReader, with_at: Callable[..., Any]) -> None:
    for position, offset in enumerate(shard.meta.at):
        at = list(shard.meta.at)
        at[position] = 4096 if offset is None else offset + 4096
        with pytest.raises(StoreCorruptError, match="stands at"):
            check_through_libhdf5(shard.path, FIELDS, with_at(shard.meta, at))


CHECK = """
import pickle, sys
from pathlib import Path
from flatout.errors import StoreCorruptError
from flatout.store.shard_file import check_through_libhdf5
for path, fields, meta in pickle.loads(sys.stdin.buffer.read()):
    try:
        check_through_libhdf5(Path(path), fields, meta)
    except StoreCorruptError:
        continue
    raise SystemExit(f"{path} was taken")
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_nothing_outside_the_shard_is_ever_opened(shard: ShardReader, outside: Path, tmp_path: Path) -> None:
    import pickle

    cases = []
    for change in HOSTILE:
        path = tmp_path / f"{change.__name__}.h5"
        shutil.copy(shard.path, path)
        with h5py.File(path, "r+") as file:
            change(file, outside)
        cases.append((str(path), FIELDS, shard.meta))
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-qq", "-e", "trace=open,openat", "-o", str(trace), sys.executable, "-c", CHECK]
    probe = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("strace may not trace here")
    subprocess.run(command, input=pickle.dumps(cases), check=True)
    opened = trace.read_text()
    assert "add_virtual.h5" in opened
    assert outside.name not in opened
