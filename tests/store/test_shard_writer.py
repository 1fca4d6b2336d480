"""Shards: every dtype, encoding and compression there and back; bytes, places, memory, failures."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  so that h5py reads zstd
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from xxhash import xxh3_128

from flatout.errors import SampleError, StoreCorruptError
from flatout.source import hash_key
from flatout.store import checks, column, gather, layout, metadata, past_cache, shard_writer
from flatout.store.encode import encode, restore
from flatout.store.shard_reader import ShardReader
from flatout.store.shard_writer import EncodedSample, ShardWriter
from flatout.types import FieldSpec

DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8")
COMPRESSIONS = ("none", "zstd", "gzip")
LEGAL = [
    (np.dtype(dtype).name, encoding, compression)
    for dtype, encoding, compression in itertools.product(
        DTYPES, ("none", "float16", "bfloat16", "uint8", "int16"), COMPRESSIONS
    )
    if encoding == "none" or dtype.startswith("f")
]


def save(fields: tuple[FieldSpec, ...], samples: Any, folder: Path) -> ShardReader:
    writer = ShardWriter(fields)
    for number, arrays in enumerate(samples):
        writer.append(writer.encode(f"k{number}", hash_key(f"k{number}"), -1, arrays))
    meta = writer.write(folder, 0)
    return ShardReader(folder / meta.file, meta, fields)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_all_tables_are_fetched_before_libhdf5_asks_for_them(
    compression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces that are no matter beside a shard, and not the samples behind them."""
    fields = (
        FieldSpec("x", "array", "float32", (None, None, 500), compression=compression),
        FieldSpec("text", "text", "uint8", (None,)),
    )
    writer = ShardWriter(fields)
    for number in range(300):
        arrays = {"x": np.ones((1 + number % 2, 2, 500), np.float32), "text": np.ones(number, np.uint8)}
        writer.append(writer.encode("k" * 200 + str(number), number, -1, arrays))
    written = writer.put(tmp_path, 0)
    monkeypatch.setattr(past_cache, "PIECE_BYTES", 4096)
    with open(written.temporary, "rb", buffering=0) as file:
        written._fetch_head(file)
        fetched = file.tell()
    meta = written.settle()
    tables = ShardReader(tmp_path / meta.file, meta, fields).tables
    places = dict(zip(layout.dataset_paths(fields), meta.at, strict=True))
    ends = [offset + tables[path].nbytes for path in tables if (offset := places[path]) is not None]
    assert max(ends) <= fetched <= max(ends) + metadata.HEAD_ROW_BYTES * 301 < meta.size


@st.composite
def shaped(draw: Any, dtype: str, may_be_scalar: bool) -> tuple[tuple[int | None, ...], list[Any]]:
    """A stored shape with 0 to 3 axes, any of them varying or empty, and a few samples of it."""
    axes = st.one_of(st.none(), st.integers(0, 4))
    shape = tuple(draw(st.lists(axes, min_size=0 if may_be_scalar else 1, max_size=3)))
    values = st.floats(-100, 100, width=16) if np.dtype(dtype).kind == "f" else None
    samples = []
    for _ in range(draw(st.integers(1, 4))):
        actual = tuple(draw(st.integers(0, 4)) if n is None else n for n in shape)
        samples.append(draw(hnp.arrays(dtype, actual, elements=values)))
    return shape, samples


@pytest.mark.parametrize(("dtype", "encoding", "compression"), LEGAL)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_round_trip(dtype: str, encoding: str, compression: str, data: Any) -> None:
    shape, samples = data.draw(shaped(dtype, compression == "none"))
    spec = FieldSpec("x", "array", dtype, shape, encoding=encoding, compression=compression)
    with tempfile.TemporaryDirectory() as folder:
        shard = save((spec,), [{"x": array} for array in samples], Path(folder))
        assert shard.bad_rows("x") == []
        for row, array in enumerate(samples):
            expected = restore(spec, *encode(spec, array))
            found = shard.read("x", row)
            assert (found.dtype, found.shape) == (np.dtype(dtype), array.shape)
            assert found.tobytes() == expected.tobytes()
            if encoding == "none":
                assert found.tobytes() == array.tobytes()


FIELDS = (
    FieldSpec("image", "array", "float32", (3, 5)),
    FieldSpec("wide", "array", "complex64", (2,)),
    FieldSpec("series", "sequence", "float32", (None, 2), encoding="int16"),
    FieldSpec("patch", "image", "uint8", (1, None, None)),
    FieldSpec("text", "text", "uint8", (None,)),
    FieldSpec("packed", "array", "float64", (4,), compression="zstd"),
    FieldSpec("nothing", "array", "float32", (0, 3)),
    FieldSpec("label", "label", "int64", ()),
)


def sample(number: int) -> dict[str, Any]:
    generator = np.random.default_rng(number)
    return {
        "image": generator.normal(size=(3, 5)).astype(np.float32),
        "wide": np.array([1 + 2j, number], np.complex64),
        "series": generator.normal(size=(number, 2)).astype(np.float32),
        "patch": generator.integers(0, 255, (1, number, 3), np.uint8),
        "text": np.frombuffer(f"größe {number}".encode(), np.uint8),
        "packed": generator.normal(size=4),
        "nothing": np.zeros((0, 3), np.float32),
        "label": np.asarray(number),
    }


def test_h5py_alone_reads_a_shard(tmp_path: Path) -> None:
    samples = [sample(number) for number in range(3)]
    shard = save(FIELDS, samples, tmp_path)
    with h5py.File(shard.path, "r") as file:
        np.testing.assert_array_equal(file["image"][:], [s["image"] for s in samples])
        np.testing.assert_array_equal(file["packed"][:], [s["packed"] for s in samples])
        np.testing.assert_array_equal(file["label"][:], [0, 1, 2])
        start, stop = file["text/offsets"][1:3]
        assert file["text/values"][start:stop].tobytes().decode() == "größe 1"
        keys, edges = file["flatout/key_bytes"][:].tobytes(), file["flatout/key_offsets"][:]
        assert [keys[a:b] for a, b in itertools.pairwise(edges)] == [b"k0", b"k1", b"k2"]
        np.testing.assert_array_equal(file["flatout/key_hash"][:], [hash_key(f"k{n}") for n in range(3)])
        assert dict(file.attrs) == {"format": "flatout-shard", "version": 1}
        assert file.id.get_create_plist().get_version()[0] == 0  # superblock: not `latest`


def test_every_field_starts_on_a_page_and_every_table_is_aligned(tmp_path: Path) -> None:
    shard = save(FIELDS, [sample(number) for number in range(3)], tmp_path)
    paths = layout.dataset_paths(FIELDS)
    places = dict(zip(paths, shard.meta.at, strict=True))
    assert {path for path, at in places.items() if at is None} == {"packed", "nothing", "flatout/crc/nothing"}
    with h5py.File(shard.path, "r") as file:
        for path, at in places.items():
            if at is not None:
                assert at % (64 if path in layout.table_dtypes(FIELDS) else 4096) == 0
                assert at % file[path].dtype.itemsize == 0
                assert file[path].id.get_offset() == at


def test_the_name_and_the_record_tell_the_bytes(tmp_path: Path) -> None:
    shard = save(FIELDS, [sample(number) for number in range(3)], tmp_path)
    data = shard.path.read_bytes()
    digest = xxh3_128(data).hexdigest()
    meta = shard.meta
    assert (meta.file, meta.xxh3) == (f"000000-{digest[:16]}.h5", digest)
    assert (meta.size, meta.rows) == (len(data), 3)
    tables = b"".join(table.tobytes() for table in shard.tables.values())
    assert meta.crc == checks.crc32c(np.frombuffer(tables, np.uint8))


def test_equal_samples_give_equal_bytes(tmp_path: Path) -> None:
    shards = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shards.append(save(FIELDS, [sample(number) for number in range(3)], tmp_path / name))
    assert shards[0].meta == shards[1].meta
    assert shards[0].path.read_bytes() == shards[1].path.read_bytes()
    with h5py.File(shards[0].path, "r") as file:  # no object has a time
        names: list[str] = []
        file.visit(names.append)
        assert len(names) > 20
        assert {h5py.h5g.get_objinfo(file.id, name.encode()).mtime for name in names} == {0}


def test_short_writes_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [sample(number) for number in range(3)]
    expected = save(FIELDS, samples, tmp_path).path.read_bytes()
    (tmp_path / "short").mkdir()
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, view: write(descriptor, view[:1001]))
    assert save(FIELDS, samples, tmp_path / "short").path.read_bytes() == expected


def test_a_writer_that_has_written_refuses_to_write_again(tmp_path: Path) -> None:
    """Its samples are gone: what it has left would be a file of zeros with a valid hash."""
    writer = ShardWriter(FIELDS)
    writer.append(writer.encode("a", 1, -1, sample(1)))
    writer.write(tmp_path, 0)
    with pytest.raises(AssertionError, match="written once"):
        writer.write(tmp_path, 1)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("is_full", [False, True])
def test_slabs_come_back_whether_a_shard_was_written_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    spec, slabs = FieldSpec("x", "array", "float32", (3000,)), column.Slabs()
    writer = ShardWriter((spec,), slabs=slabs)
    writer.append(writer.encode("a", 1, -1, {"x": np.ones(3000, np.float32)}))
    if is_full:
        monkeypatch.setattr(shard_writer, "write_hashed", _refused)
        with pytest.raises(OSError, match="full"):
            writer.write(tmp_path, 0)
    else:
        writer.write(tmp_path, 0)
    assert len(slabs._free) == 1


def _refused(*_: object, **__: object) -> None:
    raise OSError(28, "the disk is full")


@pytest.mark.parametrize("slabs", [None, column.Slabs()], ids=["as they come", "in slabs"])
def test_samples_around_the_sizes_of_memory(tmp_path: Path, slabs: column.Slabs | None) -> None:
    spec = FieldSpec("x", "array", "uint8", (None,))
    most, large = gather.GATHER_BYTES, gather.LARGE_BYTES
    sizes = [most + 7, 0, 3, most, 0, large, large - 1, large + 1, 1, most, *[400_000] * 5, large - 1]
    most, large, small = column.SLAB_BYTES, column.LARGE_BYTES, column.SMALL_BYTES
    sizes += [most + 7, 0, 3, most, 0, large, small, small - 1, large + 1, 1, most, *[400_000] * 5, large - 1]
    samples = [{"x": np.full(size, number, np.uint8)} for number, size in enumerate(sizes)]
    writer = ShardWriter((spec,), slabs=slabs)
    for number, arrays in enumerate(samples):
        writer.append(writer.encode(str(number), number, -1, arrays))
    meta = writer.write(tmp_path, 0)
    shard = ShardReader(tmp_path / meta.file, meta, (spec,))
    for row, arrays in enumerate(samples):
        np.testing.assert_array_equal(shard.read("x", row), arrays["x"])


@pytest.mark.parametrize(
    ("sizes", "num_crcs"),
    [
        ([4096] * 5, 5),  # one a sample
        ([4095] * 5, 1),  # 20,475 bytes are one block of 64 KiB
        ([4095] * 17, 2),
        ([0, 0], 0),
        ([100_000, 1], 2),  # it is the mean that counts
    ],
)
def test_small_samples_share_the_crc_of_a_block(tmp_path: Path, sizes: list[int], num_crcs: int) -> None:
    spec = FieldSpec("x", "array", "uint8", (None,))
    shard = save((spec,), [{"x": np.ones(size, np.uint8)} for size in sizes], tmp_path)
    assert len(shard.tables["flatout/crc/x"]) == num_crcs


def test_compressed_samples_have_a_crc_each_of_what_was_compressed(tmp_path: Path) -> None:
    spec = FieldSpec("x", "array", "uint8", (None,), compression="zstd")
    arrays = [np.arange(size, dtype=np.uint8) for size in (3, 0, 7)]
    shard = save((spec,), [{"x": array} for array in arrays], tmp_path)
    assert shard.tables["flatout/crc/x"].tolist() == [checks.crc32c(array) for array in arrays]


def test_digests_tell_samples_apart() -> None:
    spec = FieldSpec("x", "array", "float32", (None, None))
    quantised = FieldSpec("x", "array", "float32", (None, None), encoding="uint8")
    array = np.arange(6, dtype=np.float32).reshape(2, 3)

    def digest(spec: FieldSpec, array: Any) -> int:
        return ShardWriter((spec,)).encode("k", 1, -1, {"x": array}).digest()

    found = {digest(spec, array), digest(spec, array.reshape(3, 2)), digest(spec, array + 1)}
    found |= {digest(quantised, array), digest(quantised, array * 2)}  # equal codes, another scale
    assert len(found) == 5
    assert digest(spec, np.asfortranarray(array)) in found


def test_a_number_keeps_its_shape_in_the_digest() -> None:
    spec = FieldSpec("y", "label", "int64", ())
    encoded = ShardWriter((spec,)).encode("k", 1, -1, {"y": np.asarray(5)})
    assert encoded.stored["y"].shape == ()
    again = EncodedSample.of("k", 1, -1, {"y": np.asarray(5)}, {})
    assert encoded.digest() == again.digest()


def test_keeps_the_largest_error_of_each_encoded_field() -> None:
    fields = (
        FieldSpec("x", "array", "float32", (2,), encoding="float16"),
        FieldSpec("y", "array", "int64", ()),
    )
    writer = ShardWriter(fields)
    for value in (1.0, 2049.0, 3.0):
        writer.encode("k", 1, -1, {"x": np.array([0, value], np.float32), "y": np.asarray(1)})
    assert writer.largest_errors == {"x": 1.0}


def test_what_does_not_fit_is_told_before_anything_is_kept() -> None:
    writer = ShardWriter((FieldSpec("x", "array", "float32", (1,), encoding="float16"),))
    with pytest.raises(SampleError, match="does not fit float16"):
        writer.encode("k", 1, -1, {"x": np.array([1e9], np.float32)})
    assert (len(writer), writer.num_bytes) == (0, 0)


def test_a_shard_that_does_not_open_never_gets_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_hashed = shard_writer.write_hashed

    def damage(path: Path, buffers: Any, **options: Any) -> str:
        digest = write_hashed(path, buffers, **options)
        path.write_bytes(b"\0" * 600 + path.read_bytes()[600:])
        return digest

    monkeypatch.setattr(shard_writer, "write_hashed", damage)
    with pytest.raises(StoreCorruptError):
        save(FIELDS, [sample(1)], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_checked_and_synced_before_the_name_and_the_folder_synced_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def noted(module: Any, name: str) -> Callable[..., Any]:
        function = getattr(module, name)

        def call(*arguments: Any, **named: Any) -> Any:
            events.append(name)
            return function(*arguments, **named)

        monkeypatch.setattr(module, name, call)
        return call

    noted(os, "fsync")
    noted(shard_writer, "check_through_libhdf5")
    noted(Path, "replace")
    noted(shard_writer, "sync_folder")
    save(FIELDS, [sample(1)], tmp_path)
    assert events == ["fsync", "check_through_libhdf5", "replace", "sync_folder", "fsync"]


def test_unsafe_shards_are_whole_but_unchecked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: pytest.fail("it was synced"))
    fields = (FieldSpec("x", "array", "float32", (2000,)),)
    writer = ShardWriter(fields, safe=False)
    writer.append(writer.encode("k", 1, -1, {"x": np.ones(2000, np.float32)}))
    meta = writer.write(tmp_path, 3)
    np.testing.assert_array_equal(ShardReader(tmp_path / meta.file, meta, fields).read("x", 0), np.ones(2000))


PEAK = """
import sys, tempfile
from pathlib import Path
import numpy as np
from flatout.store.shard_writer import ShardWriter
from flatout.store.task import peak_resident_bytes
from flatout.types import FieldSpec

size, count, compression = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
writer = ShardWriter((FieldSpec("x", "array", "uint8", (size,), compression=compression),))
generator = np.random.default_rng(0)
for number in range(count):
    writer.append(writer.encode(str(number), number, -1, {"x": generator.integers(0, 256, size, np.uint8)}))
before = peak_resident_bytes()
with tempfile.TemporaryDirectory(dir=sys.argv[4]) as folder:
    writer.write(Path(folder), 0)
print(peak_resident_bytes() - before)
"""


@pytest.mark.parametrize(
    ("size", "count", "compression"),
    [(1_000_000, 300, "none"), (3_000, 30_000, "none"), (1_000_000, 60, "zstd")],
)
def test_writing_takes_little_more_memory_than_the_samples(
    tmp_path: Path, size: int, count: int, compression: str
) -> None:
    command = [sys.executable, "-c", PEAK, str(size), str(count), compression, str(tmp_path)]
    extra = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert extra < 0.2 * size * count + (16 << 20)
